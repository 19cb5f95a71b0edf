"""Kernels for training on GPUs, written in Triton: what torch's own leave of the time of small encoders."""
