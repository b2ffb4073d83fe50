"""What `grpo.py` has both sides train: sizes, prompts and the reward."""

import json
import random
import sys
from collections.abc import Sequence
from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 264,
    "dim": 128,
    "num_layers": 4,
    "num_heads": 4,
    "num_kv_heads": 2,
    "hidden_dim": 384,
}
"""The model of the experiment `tiny`."""

LETTERS = "abcdefghijklmnop"


def arguments() -> dict[str, Any]:
    """Return what the benchmark says: rows, group, prompt, completion, steps."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def prompts(count: int, length: int) -> list[str]:
    """Return random texts of so many letters."""
    draw = random.Random(0)
    return ["".join(draw.choices(LETTERS, k=length)) for _ in range(count)]


def rewards(completions: Sequence[str]) -> list[float]:
    """Return the share of the letter e in each text."""
    return [one.count("e") / max(1, len(one)) for one in completions]
