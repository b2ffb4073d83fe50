"""RMS normalisation on NVIDIA GPUs."""
