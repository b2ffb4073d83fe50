"""llama.cpp computes with what axcore writes what axcore computes."""

import functools

import numpy as np
import pytest
from gguf_models import write_model
from llama_cpp_models import CLOSE, CLOSE_GELU, COMPUTED, GEMMAS, load, make, their_logits
from parity_pairs import TOKENS, model_logits

pytestmark = pytest.mark.parity

NUM_DRAWN = 32


def ours_and_theirs(name, path, **kept):
    cfg = make(name)
    state = write_model(path, cfg, **kept)
    return functools.partial(model_logits, cfg.build(), state), load(path)


@pytest.mark.parametrize("name", COMPUTED)
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
