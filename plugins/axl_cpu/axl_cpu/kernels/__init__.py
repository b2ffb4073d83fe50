"""Kernels, a folder for each op."""
