"""Labelled images: from where people keep them to uint8 tensors of one shape."""
