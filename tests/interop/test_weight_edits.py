"""Published weights for a model that differs: grown, or read in part."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state

from axcore.config import update_config
from axcore.errors import CheckpointError, ConfigError
from axcore.interop import FreshHead, GrowVocabulary, HuggingFace, to_hugging_face
from axcore.interop.array_source import GrownByMean, InterpolatedRows, RepeatedRows, Zeroed
from axcore.models import llama2, qwen2
from axcore.models.causal_lm import TiedHead

OLD, NEW = 264, 300


def state_of(cfg):
    return jax.tree.map(jnp.asarray, numpy_state(cfg.build().param_specs()))


def abstract(cfg):
    return jax.eval_shape(lambda: cfg.build().init(0))


def first(folder, cfg, **edits):
    plan = HuggingFace.Config(path=str(folder), **edits).build().plan(cfg)
    return plan.read(abstract(cfg)), plan.table()


def grown(cfg):
    return update_config(cfg, {"vocab_size": NEW})


@pytest.fixture
def folder(tmp_path):
    to_hugging_face(tmp_path / "hf", llama2("toy"), state_of(llama2("toy")))
    return tmp_path / "hf"


def test_new_tokens_begin_as_the_mean_of_the_old_ones(folder):
    old = state_of(llama2("toy"))
    new, table = first(folder, grown(llama2("toy")), edits=(GrowVocabulary(),))
    embedding, head = new["decoder"]["embedding"]["weight"], new["head"]["weight"]
    small = old["decoder"]["embedding"]["weight"]
    assert np.array_equal(embedding[:OLD], small)
    np.testing.assert_allclose(embedding[OLD:], np.tile(small.mean(0), (NEW - OLD, 1)), atol=1e-6)
    axis = head.shape.index(NEW)
    assert np.array_equal(np.take(head, range(OLD), axis), old["head"]["weight"])
    assert np.array_equal(new["decoder"]["norm"]["weight"], old["decoder"]["norm"]["weight"])
    assert table.count("grown to") == 2


def test_a_tied_vocabulary_grows_too(tmp_path):
    cfg = update_config(qwen2("toy"), {"head": TiedHead.Config()})
    to_hugging_face(tmp_path / "hf", cfg, state_of(cfg))
    new, table = first(tmp_path / "hf", grown(cfg), edits=(GrowVocabulary(),))
    assert new["decoder"]["embedding"]["weight"].shape[0] == NEW
    assert table.count("grown to 300") == 1


def test_a_vocabulary_neither_grows_unasked_nor_shrinks(folder):
    with pytest.raises(ConfigError, match=r"\+ vocab_size: 300"):
        first(folder, grown(llama2("toy")))
    small = update_config(llama2("toy"), {"vocab_size": 200})
    with pytest.raises(ConfigError, match="has nothing to do: the vocabulary has 264 tokens"):
        first(folder, small, edits=(GrowVocabulary(),))


def test_what_is_not_read_begins_as_in_a_new_model(folder):
    cfg, old = llama2("toy"), state_of(llama2("toy"))
    new, table = first(folder, cfg, fresh=("head.**", "**.feed_forward.gate.weight"))
    random = jax.jit(cfg.build().init)(0)
    assert np.array_equal(new["head"]["weight"], random["head"]["weight"])
    layer = new["decoder"]["stack"]["layer"]
    assert np.array_equal(
        layer["feed_forward"]["gate"]["weight"],
        random["decoder"]["stack"]["layer"]["feed_forward"]["gate"]["weight"],
    )
    assert np.array_equal(
        layer["feed_forward"]["up"]["weight"],
        old["decoder"]["stack"]["layer"]["feed_forward"]["up"]["weight"],
    )
    lines = dict(line.split(maxsplit=1) for line in table.splitlines())
    assert lines["head.weight"] == "randomly initialized"
    queries = lines["decoder.stack.layer.attention.q.weight"]
    assert queries == "model.layers.0.self_attn.q_proj.weight and 1 more (model.safetensors)"


def test_what_is_not_read_may_be_missing(folder):
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is missing"):
        first(folder, llama2("toy"))
    first(folder, llama2("toy"), fresh=("head.**",))


def test_a_glob_that_matches_nothing_is_an_error(folder):
    with pytest.raises(ConfigError, match=r"'\*\*\.heads' matches no array"):
        first(folder, llama2("toy"), fresh=("**.heads",))


@pytest.mark.parametrize(
    "change",
    [GrownByMean(0, 9), GrownByMean(1, 7), RepeatedRows(11), InterpolatedRows(9), Zeroed()],
    ids=str,
)
def test_changes_are_the_same_in_host_memory_and_on_devices(change):
    array = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
    on_host, on_device = change(array), change(jnp.asarray(array))
    np.testing.assert_allclose(on_host, on_device, atol=1e-6)
    assert on_host.dtype == on_device.dtype == np.float32


@pytest.mark.parametrize("head", [llama2("toy").head, TiedHead.Config()])
def test_a_fresh_head_takes_the_place_of_the_one_that_was_there(tmp_path, head):
    base = update_config(qwen2("toy"), {"head": head})
    to_hugging_face(tmp_path / "hf", base, state_of(base))
    new, table = first(tmp_path / "hf", FreshHead().changed(base), edits=(FreshHead(),))
    assert new["head"]["weight"].shape == (1, base.dim)
    assert "head.weight" in table
    assert table.count("randomly initialized") == 1
    jax.tree.map(np.testing.assert_array_equal, new["decoder"], state_of(base)["decoder"])


def test_a_fresh_head_does_not_explain_other_differences(folder):
    other = update_config(FreshHead().changed(llama2("toy")), {"**.theta": 5.0})
    with pytest.raises(ConfigError, match="theta"):
        first(folder, other, edits=(FreshHead(),))


def test_a_head_that_is_there_is_not_lost():
    with pytest.raises(ConfigError, match=r"is a ScalarHead\.Config already") as caught:
        FreshHead().changed(FreshHead().changed(llama2("toy")))
    assert "init_from.edits=()" in caught.value.hint
