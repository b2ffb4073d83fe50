"""A rival of `serving.py`: llama.cpp, by the library that its Python package holds.

    python benchmarks/_serving_llama.py MODEL.gguf THREADS

As its own `llama-batched-bench`: one context, a batch of all sequences a step, likeliest token by
its sampler. Threads are as many as cores; flash attention and the type of the cache are its
defaults.
"""

import ctypes
import sys
from typing import Any

import llama_cpp
import numpy as np
from _serving_load import CONTEXT, LONG_PROMPT, PROMPT, Watch, answer_tasks, prompts

ROWS = 8
_ONE = (ctypes.c_int32 * 1)(0)


class Llama:
    """A model and a context for some sequences."""

    def __init__(self, path: str, threads: int) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(
            path.encode(), llama_cpp.llama_model_default_params()
        )
        room = llama_cpp.llama_context_default_params()
        room.n_ctx, room.n_batch, room.n_ubatch = ROWS * CONTEXT, 2048, 512
        room.n_seq_max = ROWS
        room.n_threads = room.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, room)
        vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self._sampler = llama_cpp.llama_sampler_init_greedy()
        self._batch = llama_cpp.llama_batch_init(ROWS * LONG_PROMPT, 0, 1)

    def forget(self) -> None:
        """Empties all sequences."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)

    def step(self, tokens: list[list[int]], start: int) -> list[int]:
        """Add tokens to each sequence, from a position; returns the likeliest ones after them."""
        batch, places, count = self._batch, [], 0
        for row, new in enumerate(tokens):
            for place, token in enumerate(new):
                batch.token[count], batch.pos[count] = token, start + place
                batch.n_seq_id[count], batch.seq_id[count][0] = 1, row
                batch.logits[count] = place == len(new) - 1
                count += 1
            places.append(count - 1)
        batch.n_tokens = count
        if llama_cpp.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        return [llama_cpp.llama_sampler_sample(self._sampler, self._context, at) for at in places]


def read(model: Llama, rows: list[list[int]]) -> list[int]:
    """Return the tokens after prompts of one length, read by pieces of `n_batch` tokens."""
    model.forget()
    size = min(len(rows[0]), 2048 // len(rows))
    for start in range(0, len(rows[0]), size):
        drawn = model.step([row[start : start + size] for row in rows], start)
    return drawn


def main(path: str, threads: str) -> None:
    model = Llama(path, int(threads))

    def decode(batch: int, count: int, seed: int) -> dict[str, Any]:
        """Take the time of each token after the first."""
        drawn = read(model, prompts(batch, PROMPT, model.vocab_size, seed=seed))
        watch, text = Watch(), [drawn]
        with watch.running():
            for place in range(count):
                drawn = model.step([[token] for token in drawn], PROMPT + place)
                text.append(drawn)
        return {**watch.figures(count), "tokens": np.transpose(text)[0].tolist()}

    def first(seed: int) -> dict[str, Any]:
        """Take the time to the first token."""
        rows, watch = prompts(1, LONG_PROMPT, model.vocab_size, seed=seed), Watch()
        with watch.running():
            drawn = read(model, rows)
        return {**watch.figures(), "tokens": drawn}

    setting = {
        "threads": int(threads),
        "system": llama_cpp.llama_print_system_info().decode().strip(),
        "cache": "float16, flash attention where it finds it faster: defaults",
    }
    answer_tasks(
        {"decode": decode, "first": first}, packages=("llama-cpp-python",), setting=setting
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
