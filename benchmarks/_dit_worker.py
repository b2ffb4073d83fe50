"""Sizes and the batch of `dit_peers.py`, for rivals with and without jax."""

from typing import Any

import numpy as np

PICTURES, SIDE, PATCH, CHANNELS, CLASSES = 32, 16, 2, 4, 100
DIM, LAYERS, HEADS, HIDDEN = 192, 6, 3, 768
RATE, WEIGHT_DECAY, BETAS, CLIP_NORM = 3e-4, 0.1, (0.9, 0.999), 1.0


def batch() -> tuple[Any, Any]:
    """Return latents `[PICTURES, SIDE, SIDE, CHANNELS]` and classes, the same for all."""
    random = np.random.default_rng(0)
    latents = random.normal(size=(PICTURES, SIDE, SIDE, CHANNELS)).astype(np.float32)
    return latents, random.integers(0, CLASSES, PICTURES).astype(np.int32)
