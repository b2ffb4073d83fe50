"""Matmul on NVIDIA GPUs."""
