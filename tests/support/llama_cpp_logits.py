"""Writes llama.cpp's logits of tokens: FILE OUT TOKEN...; what it cannot load may end the process.

Imports neither jax nor axcore, so that a process for each file takes no time.
"""

import sys

import llama_cpp
import numpy as np

FLOAT32 = 0
"""llama.cpp's number of the type, here of its cache."""

if __name__ == "__main__":
    file, out, *tokens = sys.argv[1:]
    kept = {"n_ctx": 64, "verbose": False, "n_threads": 1, "flash_attn": False}
    model = llama_cpp.Llama(file, logits_all=True, type_k=FLOAT32, type_v=FLOAT32, **kept)
    model.eval([int(token) for token in tokens])
    np.save(out, model.scores[: len(tokens)])
