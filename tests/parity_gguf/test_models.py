"""llama.cpp computes with what axcore writes what axcore computes."""

import functools

import numpy as np
import pytest
from gguf_models import MAX_LENGTH, write_model
from parity_pairs import MODELS, TOKENS, model_logits

pytestmark = pytest.mark.parity

NAMES = ("llama", "llama-3.1", "llama-3.2", "llama-linear", "llama-biased", "mixtral")
NAMES += ("qwen2", "qwen2-tied", "qwen2-yarn", "qwen3", "qwen3_moe")
GEMMAS = ("gemma", "gemma2", "gemma3")
CLOSE, CLOSE_GELU = 1e-5, 2e-3
"""Of logits of about 4; llama.cpp's table of GELU is in half precision."""
NUM_DRAWN = 32
FLOAT32 = 0
"""llama.cpp's number of the type, here of its cache."""


def load(path):
    llama_cpp = pytest.importorskip("llama_cpp", reason="run make parity-gguf")
    return llama_cpp.Llama(
        str(path),
        n_ctx=MAX_LENGTH,
        logits_all=True,
        verbose=False,
        type_k=FLOAT32,
        type_v=FLOAT32,
        flash_attn=False,
        n_threads=1,
    )


def their_logits(model, tokens):
    model.reset()
    model.eval(tokens)
    return np.array(model.scores[: len(tokens)])


def ours_and_theirs(name, path, **kept):
    cfg = MODELS[name]()
    state = write_model(path, cfg, **kept)
    return functools.partial(model_logits, cfg.build(), state), load(path)


@pytest.mark.parametrize("name", [*NAMES, *GEMMAS])
def test_logits_and_greedy_text_are_the_same(name, tmp_path):
    ours, theirs = ours_and_theirs(name, tmp_path / "model.gguf")
    logits = ours(TOKENS[:1])[0]
    atol = CLOSE_GELU if name in GEMMAS else CLOSE
    assert np.abs(logits).max() > 0.5
    np.testing.assert_allclose(their_logits(theirs, TOKENS[0].tolist()), logits, atol=atol)
    prompt = TOKENS[0, :5].tolist()
    drawn = list(prompt)
    last = their_logits(theirs, prompt)[-1]
    for _ in range(NUM_DRAWN):
        drawn.append(int(last.argmax()))
        theirs.eval(drawn[-1:])
        last = theirs.scores[theirs.n_tokens - 1]
    row = np.zeros((1, len(drawn)), np.int32)
    row[0, : len(prompt)] = prompt
    for place in range(len(prompt), len(drawn)):
        row[0, place] = ours(row)[0, place - 1].argmax()
    assert row[0].tolist() == drawn


@pytest.mark.parametrize(("dtype", "atol"), [("float16", 0.05), ("bfloat16", 0.2), ("q8_0", 0.3)])
def test_narrow_matrices_are_near(dtype, atol, tmp_path):
    ours, theirs = ours_and_theirs("llama", tmp_path / "model.gguf", dtype=dtype)
    difference = np.abs(their_logits(theirs, TOKENS[0].tolist()) - ours(TOKENS[:1])[0])
    assert 0 < difference.max() < atol
