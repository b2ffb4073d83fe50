"""Grouped matmul on NVIDIA GPUs."""
