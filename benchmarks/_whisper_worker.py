"""Sizes and the batch of `whisper_peers.py`, for rivals with and without jax."""

from typing import Any

import numpy as np

SOUNDS, SECONDS, LENGTH, WORDS, BANDS = 8, 6, 49, 2000, 80
SAMPLES, TOKENS = SECONDS * 16_000, SECONDS * 50
"""Of a sound: what is heard, and what the encoder makes of it."""
DIM, LAYERS, HEADS, HIDDEN = 192, 4, 3, 768
RATE, WEIGHT_DECAY, BETAS, CLIP_NORM = 3e-4, 0.1, (0.9, 0.98), 1.0


def batch() -> tuple[Any, Any]:
    """Return sounds `[SOUNDS, SAMPLES]`, and tokens `[SOUNDS, LENGTH]`, the same for all."""
    random = np.random.default_rng(0)
    sounds = random.normal(size=(SOUNDS, SAMPLES)).astype(np.float32) * np.float32(0.1)
    return sounds, random.integers(0, WORDS, (SOUNDS, LENGTH)).astype(np.int32)
