"""Inference: text from a trained model."""

from axcore.inference.generate import Generation, Generator
from axcore.inference.sampling import Sampling

__all__ = ["Generation", "Generator", "Sampling"]
