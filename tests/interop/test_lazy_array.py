"""A state whose leaves stay in their files is the one that is read, whole or array by array."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_state import numpy_state

from axcore.interop import HuggingFace, to_hugging_face
from axcore.interop.array_source import LazyArray, read_leaf
from axcore.models import mixtral

CFG = mixtral("toy")
EXPERTS = "model.layers.1.block_sparse_moe.experts"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("unread") / "hf"
    state = jax.tree.map(jnp.asarray, numpy_state(CFG.build().param_specs()))
    to_hugging_face(made, CFG, state)
    return made


def states(folder, **fields):
    """Returns a state that is read, and the same unread."""
    plan = HuggingFace.Config(path=str(folder), **fields).build().plan(CFG)
    wanted = jax.eval_shape(lambda: CFG.build().init(0))
    return plan.read(wanted), plan.lazy(wanted)


def test_a_leaf_is_read_whole_or_in_part(folder):
    for leaf, unread in zip(*map(jax.tree.leaves, states(folder)), strict=True):
        assert isinstance(unread, LazyArray)
        assert (unread.shape, unread.dtype) == (leaf.shape, leaf.dtype)
        np.testing.assert_array_equal(read_leaf(unread), leaf)
        own = unread.origins[0].shape
        taken = slice(len(unread.origins) // 2, None)
        np.testing.assert_array_equal(
            unread.reshape(-1, *own)[taken], leaf.reshape(-1, *own)[taken]
        )


def test_a_slice_reads_no_other_tensor(folder, monkeypatch):
    layer = states(folder)[1]["decoder"]["stack"]["layer"]
    down, read = layer["feed_forward"]["experts"]["expert"]["down"]["weight"], []
    place = type(next(iter(down.source.tensors.values())))
    monkeypatch.setattr(place, "read", watched(place.read, read))
    own = down.origins[0].shape
    assert down.reshape(-1, *own)[9:11].shape == (2, *own)
    where = {down.source.tensors[f"{EXPERTS}.{expert}.w2.weight"] for expert in (1, 2)}
    assert set(read) == where


def watched(function, seen):
    def call(self):
        seen.append(self)
        return function(self)

    return call


def test_what_is_not_in_the_files_is_there_at_once(folder):
    """Leaves that begin randomly initialized, and those of which some layers do."""
    fresh = ("head.**", "decoder.stack.layer[1].feed_forward.**")
    read, unread = states(folder, fresh=fresh)
    kinds = {type(leaf) for leaf in jax.tree.leaves(unread)}
    assert kinds == {LazyArray, np.ndarray}
    assert isinstance(unread["head"]["weight"], np.ndarray)
    for leaf, other in zip(*map(jax.tree.leaves, (read, unread)), strict=True):
        np.testing.assert_array_equal(read_leaf(other), leaf)
