"""Sizes and the batch of `vit_peers.py`, for rivals with and without jax."""

from typing import Any

import numpy as np

PICTURES, SIDE, PATCH, CLASSES = 32, 64, 8, 100
DIM, LAYERS, HEADS, HIDDEN = 192, 6, 3, 768
RATE, WEIGHT_DECAY, BETAS, CLIP_NORM = 3e-4, 0.1, (0.9, 0.95), 1.0


def batch() -> tuple[Any, Any]:
    """Return pictures `[PICTURES, SIDE, SIDE, 3]`, normalized, and labels, the same for all."""
    random = np.random.default_rng(0)
    pictures = random.normal(size=(PICTURES, SIDE, SIDE, 3)).astype(np.float32)
    return pictures, random.integers(0, CLASSES, PICTURES).astype(np.int32)
