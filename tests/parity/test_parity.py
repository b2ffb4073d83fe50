"""Models of both libraries give the same numbers, and a wrong config is found by them."""

import copy
import json
import math
import shutil

import jax
import numpy as np
import pytest
from parity_pairs import (
    NUM_DRAWN,
    TOKENS,
    changing,
    config_of,
    mutated,
    our_logits,
    saved_gradients,
    their_logits,
)
from safetensors.numpy import load_file

from axcore.config import evolve
from axcore.errors import AxcoreError
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.layers import TokenInfo
from axcore.module import functional

pytestmark = pytest.mark.parity

CLOSE = 1e-4
"""Of logits of about 4; both compute in float32, in other orders."""
SPLIT = 9
"""Where the second document of a row begins."""


def test_transformers_finds_every_tensor_in_its_place(pair):
    assert pair.complaints == {}


def test_logits_are_the_same(pair):
    assert np.abs(pair.logits).max() > 0.5
    np.testing.assert_allclose(our_logits(pair.axcore, TOKENS), pair.logits, atol=CLOSE)


def test_documents_packed_in_a_row_have_the_logits_that_they_have_alone(pair):
    length = TOKENS.shape[1]
    starts = np.where(np.arange(length) < SPLIT, 0, SPLIT)
    positions = np.broadcast_to(np.arange(length) - starts, TOKENS.shape).astype(np.int32)
    segments = np.broadcast_to(1 + (starts > 0), TOKENS.shape).astype(np.int32)
    packed = our_logits(pair.axcore, TOKENS, TokenInfo(positions, segments))
    documents = TOKENS[:, :SPLIT], TOKENS[:, SPLIT:]
    alone = np.concatenate([their_logits(pair.hf, one) for one in documents], axis=1)
    np.testing.assert_allclose(packed, alone, atol=CLOSE)


@pytest.mark.slow
def test_bfloat16_costs_no_more_than_it_costs_transformers(pair):
    import torch

    narrow = from_hugging_face(pair.folder, dtype="bfloat16")
    hf = copy.deepcopy(pair.hf).to(torch.bfloat16)
    errors = [
        np.sqrt(np.mean(np.square(np.asarray(logits, np.float32) - pair.logits), axis=-1))
        for logits in (our_logits(narrow, TOKENS), their_logits(hf, TOKENS))
    ]
    axcore, hf = map(np.median, errors)  # a token that goes to another expert is far off
    assert axcore < 1.25 * hf


def batch():
    """Full rows, of which every token but the last is predicted from."""
    weights = np.ones(TOKENS.shape, np.float32)
    weights[:, -1] = 0.0
    return {
        "tokens": TOKENS,
        "targets": np.roll(TOKENS, -1, axis=1),
        "positions": np.broadcast_to(np.arange(TOKENS.shape[1], dtype=np.int32), TOKENS.shape),
        "segment_ids": np.ones(TOKENS.shape, np.int32),
        "loss_weights": weights,
    }


@pytest.mark.slow
def test_losses_and_gradients_are_the_same(pair, tmp_path):
    import torch

    def loss(state, batch):
        total, weight = functional(pair.axcore.model, state, batch)[0]
        return total / weight

    axcore, gradients = jax.jit(jax.value_and_grad(loss))(pair.axcore.state, batch())
    tokens = torch.tensor(TOKENS).long()
    pair.hf.zero_grad()
    hf = pair.hf(tokens, labels=tokens).loss
    hf.backward()
    assert float(axcore) == pytest.approx(hf.item(), abs=1e-5)
    to_hugging_face(tmp_path / "gradients", pair.axcore.config, gradients)
    expected = saved_gradients(pair.hf, tmp_path / "hf")
    named = load_file(tmp_path / "gradients" / "model.safetensors")
    assert named.keys() == expected.keys()
    for name, value in expected.items():
        atol = 1e-3 * np.abs(value).max() + 1e-7
        np.testing.assert_allclose(named[name], value, atol=atol, err_msg=name)


def test_greedy_text_is_the_same(pair):
    import torch

    prompt = TOKENS[:1, :5]
    with torch.no_grad():
        drawn = pair.hf.generate(
            torch.tensor(prompt).long(),
            max_new_tokens=NUM_DRAWN,
            do_sample=False,
            eos_token_id=None,
        )
    row = np.zeros((1, prompt.shape[1] + NUM_DRAWN), np.int32)
    row[:, : prompt.shape[1]] = prompt
    for place in range(prompt.shape[1], row.shape[1]):
        row[0, place] = our_logits(pair.axcore, row)[0, place - 1].argmax()
    assert row.tolist() == drawn.tolist()


def test_what_transformers_saves_is_read_here(pair, tmp_path):
    pair.hf.save_pretrained(tmp_path / "hf")
    read = from_hugging_face(tmp_path / "hf")
    same = jax.tree.map(np.array_equal, read.state, pair.axcore.state)
    assert all(jax.tree.leaves(same))
    assert evolve(read.config, published=None) == evolve(pair.axcore.config, published=None)
    assert read.config.published.family == pair.axcore.config.published.family
    assert read.config.published.max_length == pair.axcore.config.published.max_length


def test_every_field_that_changes_numbers_is_found_when_it_is_wrong(pair, tmp_path):
    content = config_of(pair.folder)
    missed = [
        field for field in changing(content) if not is_found(pair, content, field, tmp_path / field)
    ]
    assert missed == []


def is_found(pair, content, field, folder):
    """Whether a config that is wrong in one field is refused, or makes other logits."""
    wrong = {**content, field: mutated(field, content[field])}
    shutil.copytree(pair.folder, folder)
    (folder / "config.json").write_text(json.dumps(wrong))
    try:
        logits = our_logits(from_hugging_face(folder), TOKENS)
    except AxcoreError:
        return True
    difference = np.abs(logits - pair.logits).max()
    return not math.isfinite(difference) or difference > 10 * CLOSE
