"""Decode attention on NVIDIA GPUs."""
