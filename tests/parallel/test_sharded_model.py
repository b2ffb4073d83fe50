"""What a sharded model moves and holds: parameters are gathered, activations stay in place."""

import jax
import pytest

from axcore.module import ParamSpec
from axcore.parallel import PARAM_RULES, make_mesh, param_shardings

BATCH_MESHES = (
    (("fsdp", 8),),
    (("data", 2), ("fsdp", 4)),
    (("data", 2), ("fsdp", 2), ("model", 2)),
)


def _name(shape):
    return " x ".join(f"{name} {size}" for name, size in shape)


@pytest.mark.parametrize("shape", BATCH_MESHES, ids=_name)
@pytest.mark.quick_one_in(6)
def test_nothing_changes_from_one_layout_to_another(on_mesh, small_model, shape):
    """Parameters are gathered and sums reduced; no activation is redistributed."""
    program, *_ = on_mesh(small_model, shape)
    assert "all-gather" in program
    assert "all-reduce" in program
    assert "all-to-all" not in program
    assert "collective-permute" not in program


def test_fully_sharded_state_takes_an_eighth_on_every_device(small_model, state_of):
    mesh = make_mesh({"fsdp": 8}, jax.devices()[:8])
    specs = small_model.build().param_specs()
    placed = jax.device_put(state_of(small_model), param_shardings(specs, PARAM_RULES, mesh))
    is_spec = lambda leaf: isinstance(leaf, ParamSpec)  # noqa: E731
    pairs = zip(jax.tree.leaves(placed), jax.tree.leaves(specs, is_leaf=is_spec), strict=True)
    for leaf, spec in pairs:
        held = {shard.data.nbytes for shard in leaf.addressable_shards}
        assert held == {leaf.nbytes // 8 if "embed" in spec.axes else leaf.nbytes}, spec.name
