"""Encoders of text give the logits and gradients of transformers, and weights go both ways."""

import json
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state
from parity_pairs import Pair, changing, config_of, mutated, saved_gradients
from safetensors.numpy import load_file

from axcore.errors import AxcoreError
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.layers import TokenInfo, whole_rows
from axcore.models import bert, bert_classifier, modernbert, modernbert_classifier
from axcore.module import functional

pytestmark = pytest.mark.parity

CLOSE = 1e-4
LENGTH = 24
TOKENS = np.random.default_rng(1).integers(0, 264, (2, LENGTH)).astype(np.int32)
IS_REAL = np.arange(LENGTH) < np.array([[LENGTH], [15]])
TYPES = (np.arange(LENGTH) > 9).astype(np.int32) * np.ones((2, 1), np.int32)

MODELS = {"bert": lambda: bert("toy"), "modernbert": lambda: modernbert("toy")}


@pytest.fixture(scope="module", params=MODELS)
def pair(request, tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    folder = tmp_path_factory.mktemp("parity") / request.param
    cfg = MODELS[request.param]()
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(folder, cfg, state, fields={"pad_token_id": 0})
    hf, said = transformers.AutoModelForMaskedLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
    )
    complaints = {key: value for key, value in said.items() if value}
    return Pair(folder, from_hugging_face(folder), hf.eval(), complaints)


def has_types(pair):
    return "type_vocab_size" in config_of(pair.folder)


def our_logits(pair, info=None, types=TYPES):
    info = whole_rows(jnp.asarray(TOKENS), jnp.asarray(IS_REAL)) if info is None else info
    types = jnp.asarray(types) if has_types(pair) else None

    def run(state, info):
        return functional(
            pair.axcore.model, state, jnp.asarray(TOKENS), info, types, method="logits"
        )[0]

    return np.asarray(jax.jit(run)(pair.axcore.state, info))


def their_output(pair, tokens=TOKENS, is_real=IS_REAL, types=TYPES, labels=None):
    import torch

    types = {"token_type_ids": torch.tensor(types).long()} if has_types(pair) else {}
    labels = {} if labels is None else {"labels": torch.tensor(labels).long()}
    mask = torch.tensor(is_real).long()
    return pair.hf(torch.tensor(tokens).long(), attention_mask=mask, **types, **labels)


def test_transformers_finds_every_tensor_in_its_place(pair):
    assert pair.complaints == {}


def test_logits_are_the_same_whatever_is_behind_the_text(pair):
    wanted = their_output(pair).logits.detach().numpy()
    assert np.abs(wanted).max() > 0.5
    np.testing.assert_allclose(our_logits(pair)[IS_REAL], wanted[IS_REAL], atol=CLOSE)


def test_documents_packed_in_a_row_have_the_logits_that_they_have_alone(pair):
    starts = np.where(np.arange(LENGTH) < 9, 0, 9)
    positions = np.broadcast_to(np.arange(LENGTH) - starts, TOKENS.shape).astype(np.int32)
    segments = np.broadcast_to(1 + (starts > 0), TOKENS.shape).astype(np.int32)
    packed = our_logits(pair, info=TokenInfo(positions, segments))
    for part in (slice(0, 9), slice(9, LENGTH)):
        tokens, types = TOKENS[:, part], TYPES[:, part]
        alone = their_output(pair, tokens, np.ones(tokens.shape), types).logits
        np.testing.assert_allclose(packed[:, part], alone.detach().numpy(), atol=CLOSE)


def batch_and_labels():
    """Every third token is predicted; what is predicted is another one."""
    is_hidden = IS_REAL & (np.arange(LENGTH) % 3 == 0)
    targets = (TOKENS + 1) % 264
    batch = {
        "tokens": TOKENS,
        "targets": targets,
        "positions": np.broadcast_to(np.arange(LENGTH, dtype=np.int32), TOKENS.shape),
        "token_mask": IS_REAL,
        "loss_weights": is_hidden.astype(np.float32),
    }
    return batch, np.where(is_hidden, targets, -100)


def test_losses_and_gradients_are_the_same(pair, tmp_path):
    batch, labels = batch_and_labels()
    batch = batch | ({"token_types": TYPES} if has_types(pair) else {})

    def loss(state, batch):
        total, weight = functional(pair.axcore.model, state, batch)[0]
        return total / weight

    found, gradients = jax.jit(jax.value_and_grad(loss))(pair.axcore.state, batch)
    pair.hf.zero_grad()
    wanted = their_output(pair, labels=labels).loss
    wanted.backward()
    assert float(found) == pytest.approx(wanted.item(), abs=1e-5)
    to_hugging_face(tmp_path / "gradients", pair.axcore.config, gradients)
    expected = saved_gradients(pair.hf, tmp_path / "hf")
    named = load_file(tmp_path / "gradients" / "model.safetensors")
    assert named.keys() == expected.keys()
    for name, value in expected.items():
        atol = 1e-3 * np.abs(value).max() + 1e-7
        np.testing.assert_allclose(named[name], value, atol=atol, err_msg=name)


def test_what_transformers_saves_is_read_here(pair, tmp_path):
    pair.hf.save_pretrained(tmp_path / "hf")
    read = from_hugging_face(tmp_path / "hf")
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, read.state, pair.axcore.state)))


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
        read = from_hugging_face(folder)
        logits = our_logits(Pair(folder, read, None, {}))
    except AxcoreError:
        return True
    wanted = their_output(pair).logits.detach().numpy()
    difference = np.abs(logits - wanted)[IS_REAL].max()
    return not math.isfinite(difference) or difference > 10 * CLOSE


CLASSIFIERS = {"bert": bert_classifier, "modernbert": modernbert_classifier}


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classifiers_give_the_logits_of_transformers_and_are_read_back(name, tmp_path):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    cfg = CLASSIFIERS[name]("toy", num_classes=3)
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    to_hugging_face(tmp_path / "new", cfg, state, fields={"pad_token_id": 0})
    hf, said = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "new", output_loading_info=True, attn_implementation="eager"
    )
    assert not any(said.values()), said
    tokens, mask = (torch.tensor(one).long() for one in (TOKENS, IS_REAL))
    wanted = hf.eval()(tokens, attention_mask=mask).logits.detach().numpy()
    assert np.abs(wanted).max() > 0.1
    hf.save_pretrained(tmp_path / "hf")
    read = from_hugging_face(tmp_path / "hf")
    args = jnp.asarray(TOKENS), jnp.asarray(IS_REAL)
    np.testing.assert_allclose(functional(read.model, read.state, *args)[0], wanted, atol=CLOSE)
    assert read.config.num_classes == 3
