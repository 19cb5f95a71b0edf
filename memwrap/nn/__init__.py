"""Tensors in, tensors out: sparse attention, the memory layer, and the memory that it reads."""
