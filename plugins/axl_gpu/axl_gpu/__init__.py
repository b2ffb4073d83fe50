"""NVIDIA GPUs for axcore: hardware, mesh rules, cuDNN attention."""
