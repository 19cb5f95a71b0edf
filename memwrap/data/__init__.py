"""Labelled images: from where people keep them to uint8 tensors of one shape."""

FITS = ("crop", "pad", "stretch")  # how a picture of another shape comes to the one that is wanted
