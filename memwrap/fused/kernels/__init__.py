"""Kernels in Triton for what torch's own leave of the time of small encoders."""
