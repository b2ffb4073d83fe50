"""axcore: modular, hardware-agnostic training of large deep learning models on JAX."""

__version__ = "0.1.0"
