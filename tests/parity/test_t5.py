"""T5 gives the logits, the gradients and the texts of transformers, and weights go both ways."""

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

from axcore.config import update_config
from axcore.errors import AxcoreError
from axcore.inference import Seq2SeqGenerator
from axcore.interop import from_hugging_face, to_hugging_face
from axcore.layers.attention.relative_bias import relative_buckets
from axcore.models import t5, t5_v1_1
from axcore.module import functional

pytestmark = pytest.mark.parity

CLOSE = 1e-4
DRAW = np.random.default_rng(1)
SOURCE, TARGET = (DRAW.integers(2, 264, (2, size)).astype(np.int32) for size in (40, 12))
IS_REAL = np.arange(40) < np.array([[40], [23]])

MODELS = {
    "t5": lambda: update_config(t5("toy"), {"decoder.stack.num_layers": 3}),
    "t5-1.1": lambda: t5_v1_1("toy"),
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request, tmp_path_factory):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    folder = tmp_path_factory.mktemp("parity") / request.param
    cfg = update_config(MODELS[request.param](), {"**.bias.max_distance": 32})
    state = jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))
    state["embedding"]["weight"] *= 4  # as large as the table of a T5, whose head divides it
    to_hugging_face(folder, cfg, state, fields={"pad_token_id": 0, "eos_token_id": 1})
    hf, said = transformers.T5ForConditionalGeneration.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
    )
    complaints = {key: value for key, value in said.items() if value}
    return Pair(folder, from_hugging_face(folder), hf.eval(), complaints)


def our_logits(read):
    def run(state):
        args = (jnp.asarray(one) for one in (SOURCE, TARGET, IS_REAL))
        return functional(read.model, state, *args, method="logits")[0]

    return np.asarray(jax.jit(run)(read.state))


def their_output(pair):
    import torch

    source, target, mask = (torch.tensor(one).long() for one in (SOURCE, TARGET, IS_REAL))
    return pair.hf(input_ids=source, attention_mask=mask, labels=target)


def test_transformers_finds_every_tensor_in_its_place(pair):
    assert pair.complaints == {}


def test_logits_are_the_same_whatever_is_behind_the_source(pair):
    wanted = their_output(pair).logits.detach().numpy()
    assert np.abs(wanted).max() > 0.5
    np.testing.assert_allclose(our_logits(pair.axcore), wanted, atol=CLOSE)


def test_losses_and_gradients_are_the_same(pair, tmp_path):
    arrays = {"source": SOURCE, "source_mask": IS_REAL, "target": TARGET}
    batch = arrays | {"target_mask": np.ones(TARGET.shape, bool)}

    def loss(state, batch):
        total, weight = functional(pair.axcore.model, state, batch)[0]
        return total / weight

    found, gradients = jax.jit(jax.value_and_grad(loss))(pair.axcore.state, batch)
    pair.hf.zero_grad()
    wanted = their_output(pair).loss
    wanted.backward()
    assert float(found) == pytest.approx(wanted.item(), abs=1e-5)
    to_hugging_face(tmp_path / "gradients", pair.axcore.config, gradients)
    expected = saved_gradients(pair.hf, tmp_path / "hf")
    named = load_file(tmp_path / "gradients" / "model.safetensors")
    assert named.keys() == expected.keys()
    for name, value in expected.items():
        atol = 1e-3 * np.abs(value).max() + 1e-7
        np.testing.assert_allclose(named[name], value, atol=atol, err_msg=name)


def test_greedy_texts_are_the_same(pair):
    import torch

    source, mask = (torch.tensor(one).long() for one in (SOURCE, IS_REAL))
    how = {"max_new_tokens": 8, "do_sample": False, "use_cache": False}
    wanted = pair.hf.generate(
        input_ids=source, attention_mask=mask, decoder_start_token_id=0, **how
    ).numpy()[:, 1:]
    rows, length = SOURCE.shape
    sizes = {"num_rows": rows, "max_tokens": 9, "source_length": length, "end": 1}
    generator = Seq2SeqGenerator(pair.axcore.model, **sizes)
    caches = generator.encode(pair.axcore.state, (SOURCE, IS_REAL))
    prompt = np.zeros((rows, 1), np.int32)
    found, is_text = generator.generate(pair.axcore.state, caches, prompt)
    for ours, real, theirs in zip(found, is_text, wanted, strict=True):
        assert ours[real].tolist() == theirs[: real.sum()].tolist()


@pytest.mark.parametrize("is_bidirectional", [True, False])
def test_every_distance_has_the_bucket_of_transformers(is_bidirectional):
    transformers = pytest.importorskip("transformers", reason="run make parity")
    import torch

    distances = np.arange(-3000, 3000)
    bucket = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    for num_buckets, max_distance in ((32, 128), (16, 100), (64, 777)):
        wanted = bucket(torch.tensor(distances), is_bidirectional, num_buckets, max_distance)
        sizes = {"num_buckets": num_buckets, "max_distance": max_distance}
        found = relative_buckets(distances, is_bidirectional=is_bidirectional, **sizes)
        np.testing.assert_array_equal(found, wanted.numpy())


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
        logits = our_logits(from_hugging_face(folder))
    except AxcoreError:
        return True
    wanted = their_output(pair).logits.detach().numpy()
    difference = np.abs(logits - wanted).max()
    return not math.isfinite(difference) or difference > 10 * CLOSE
