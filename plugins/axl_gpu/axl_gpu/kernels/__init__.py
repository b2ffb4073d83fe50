"""Kernels of our own for Hopper GPUs, in Pallas for Mosaic GPU."""
