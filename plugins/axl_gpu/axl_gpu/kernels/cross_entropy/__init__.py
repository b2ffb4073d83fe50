"""Cross-entropy on NVIDIA GPUs."""
