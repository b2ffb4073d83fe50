"""The first of `serving.py`: axcore.

    python benchmarks/_serving_axcore.py FOLDER

Threads are as many as cores, as XLA has them by itself.
"""

import os
import sys
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from _serving_load import LONG_PROMPT, PROMPT, Watch, answer_tasks, prompts

import axcore as ax
from axcore.inference import Sampling
from axcore.inference.cached_model import CachedModel, Draws
from axcore.layers import ServingRoom

DRAWN_AT_ONCE = 8
LIKELIEST = Sampling(temperature=0.0)


class Model:
    """A model with room for rows, one for each number of rows."""

    def __init__(self, folder: str) -> None:
        found = ax.from_hugging_face(folder)
        self._found = found
        self.vocab_size = found.config.vocab_size
        self._models: dict[int, CachedModel] = {}

    def rows(self, count: int) -> CachedModel:
        if count not in self._models:
            room = ServingRoom(num_rows=count, capacity=1024, max_length=1024)
            self._models[count] = CachedModel(self._found.model, self._found.state, room)
        return self._models[count]


def main(folder: str) -> None:
    models = Model(folder)

    def decode(batch: int, count: int, seed: int) -> dict[str, Any]:
        """Takes the time of each token after the first."""
        model = models.rows(batch)
        rows = np.asarray(prompts(batch, PROMPT, models.vocab_size, seed=seed), np.int32)
        logits, caches = model.read(rows)
        keys = jax.random.split(jax.random.key(0), batch)
        draws = Draws(keys, 0, np.ones(models.vocab_size, bool))
        jax.block_until_ready(caches)
        watch, text = Watch(), []
        with watch.running():
            for place in range(0, count, DRAWN_AT_ONCE):
                cached = np.full(batch, PROMPT + place, np.int32)
                drawn, logits, caches = model.draw(
                    model.weights, caches, logits, cached, draws, LIKELIEST, DRAWN_AT_ONCE
                )
                text.append(np.asarray(drawn)[:, 0])
            jax.block_until_ready(logits)
        return {**watch.figures(count), "tokens": np.concatenate(text).tolist()}

    def first(seed: int) -> dict[str, Any]:
        """Takes the time to the first token."""
        rows = np.asarray(prompts(1, LONG_PROMPT, models.vocab_size, seed=seed), np.int32)
        watch = Watch()
        with watch.running():
            logits, _ = models.rows(1).read(rows)
            token = int(np.argmax(np.asarray(logits)[0]))
        return {**watch.figures(), "tokens": [token]}

    setting = {"threads": os.cpu_count(), "tokens_per_call": DRAWN_AT_ONCE}
    answer_tasks({"decode": decode, "first": first}, packages=("jax", "jaxlib"), setting=setting)


if __name__ == "__main__":
    main(*sys.argv[1:])
