"""Triton kernels for the operations that torch is slow at in small convolutional networks."""
