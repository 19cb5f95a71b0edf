"""The GPU engine: several runs of one network trained at once, each step one captured graph of fused kernels."""
