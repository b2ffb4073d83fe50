"""Rules: from logical axes to mesh axes, strictly, for parameters and what mirrors them."""

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from axcore.errors import ShardingError
from axcore.models import transformer
from axcore.parallel import (
    ACTIVATION_RULES,
    PARAM_RULES,
    bytes_per_device,
    describe_sharding,
    make_mesh,
    param_shardings,
    partition_spec,
    shardings_like,
    unused_mesh_axes,
)


@pytest.fixture(scope="module")
def mesh():
    return make_mesh({"fsdp": 4, "model": 2}, jax.devices()[:8])


def _specs(**sizes):
    sizes = {"vocab_size": 18, "dim": 16, "num_heads": 4, "hidden_dim": 24, **sizes}
    return transformer(num_layers=2, **sizes).build().param_specs()


def test_each_dimension_goes_where_its_rule_says(mesh):
    assert partition_spec(("layers", "embed", "mlp"), PARAM_RULES, mesh) == PartitionSpec(
        None, "fsdp", "model"
    )
    assert partition_spec(("norm", None), PARAM_RULES, mesh) == PartitionSpec(None, None)


def test_several_mesh_axes_split_one_dimension_and_those_of_size_one_are_left_out(mesh):
    rules = {"batch": ("data", "fsdp", "model"), "time": ("seq",)}
    assert partition_spec(("batch", "time"), rules, mesh) == PartitionSpec(("fsdp", "model"), None)


def test_unknown_logical_axis_is_an_error_that_names_the_hint(mesh):
    with pytest.raises(ShardingError) as caught:
        partition_spec(("embed", "hedas"), PARAM_RULES, mesh, where="attention.q.weight")
    text = str(caught.value)
    assert "no rule for the logical axis 'hedas'" in text
    assert "attention.q.weight" in text
    assert "heads" in text.split("hint:")[1]
    assert "rules['hedas'] = ()" in text


def test_unknown_mesh_axis_in_a_rule_is_an_error(mesh):
    with pytest.raises(ShardingError, match=r"rule for 'embed' names the mesh axis 'fdsp'"):
        partition_spec(("embed",), {"embed": ("fdsp",)}, mesh)


def test_one_mesh_axis_cannot_split_two_dimensions(mesh):
    with pytest.raises(ShardingError, match="would split two dimensions over mesh axis 'model'"):
        partition_spec(("heads", "mlp"), PARAM_RULES, mesh)


def test_every_parameter_that_does_not_divide_is_listed_with_its_numbers(mesh):
    with pytest.raises(ShardingError) as caught:
        param_shardings(_specs(vocab_size=17, hidden_dim=27), PARAM_RULES, mesh)
    text = str(caught.value)
    assert "decoder.embedding.weight: vocab is 17, model is 2" in text
    assert "head.weight: vocab is 17, model is 2" in text
    for name in ("gate", "up", "down"):
        assert f"decoder.stack.layer.feed_forward.{name}.weight: mlp is 27, model is 2" in text
    assert text.count(", model is 2") == 5


def test_state_of_adamw_is_sharded_as_its_parameters(mesh):
    module = transformer(vocab_size=18, dim=16, num_layers=2, num_heads=4, hidden_dim=24).build()
    shardings = param_shardings(module.param_specs(), PARAM_RULES, mesh)
    params = jax.eval_shape(module.init, jax.random.key(0))
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    state = jax.eval_shape(optimizer.init, params)
    like = shardings_like(state, params, shardings, mesh)
    (adam,) = (
        part
        for part in jax.tree.leaves(like, is_leaf=lambda x: isinstance(x, optax.ScaleByAdamState))
        if isinstance(part, optax.ScaleByAdamState)
    )
    assert adam.mu == shardings
    assert adam.nu == shardings
    assert adam.count.spec == PartitionSpec()


def test_statistics_of_another_shape_are_replicated(mesh):
    specs = _specs()
    shardings = param_shardings(specs, PARAM_RULES, mesh)
    params = {"head": {"weight": jax.ShapeDtypeStruct((18, 16), jnp.float32)}}
    of_params = {"head": shardings["head"]}
    tree = {
        "copy": params,
        "rows": {"head": {"weight": jax.ShapeDtypeStruct((18,), jnp.float32)}},
        "elsewhere": {"body": {"weight": jax.ShapeDtypeStruct((18, 16), jnp.float32)}},
    }
    like = shardings_like(tree, params, of_params, mesh)
    assert like["copy"]["head"]["weight"].spec == PartitionSpec("model", "fsdp")
    assert like["rows"]["head"]["weight"].spec == PartitionSpec()
    assert like["elsewhere"]["body"]["weight"].spec == PartitionSpec()


def test_a_spec_that_leaves_out_the_last_dimensions_is_kept(mesh):
    params = {"weight": jax.ShapeDtypeStruct((16, 3), jnp.float32)}
    of_params = {"weight": NamedSharding(mesh, PartitionSpec("model"))}
    like = shardings_like({"mu": params}, params, of_params, mesh)
    assert like["mu"]["weight"].is_equivalent_to(of_params["weight"], 2)


@pytest.fixture(scope="module")
def specs():
    cfg = transformer(vocab_size=18, dim=16, num_layers=2, num_heads=4, hidden_dim=24)
    return cfg.build().param_specs()


def _shardings(specs, **mesh):
    mesh = make_mesh(mesh, jax.devices()[:8])
    return mesh, param_shardings(specs, PARAM_RULES, mesh)


def _batch(rules, mesh):
    return jax.NamedSharding(mesh, partition_spec(("batch", "time"), rules, mesh))


def test_arrays_are_told_with_what_a_device_holds_of_them(specs):
    _, shardings = _shardings(specs, fsdp=4, model=2)
    arrays = {array.name: array for array in describe_sharding(specs, shardings)}
    gate = arrays["decoder.stack.layer.feed_forward.gate.weight"]
    assert (gate.shape, gate.split) == ((2, 16, 24), ("-", "fsdp", "model"))
    assert gate.bytes_per_device == 2 * 16 * 24 * 4 // 8
    assert not gate.is_whole
    norm = arrays["decoder.norm.weight"]
    assert norm.is_whole
    assert norm.bytes_per_device == 16 * 4


def test_sum_is_what_devices_hold(specs):
    _, shardings = _shardings(specs, data=2, fsdp=4)
    module = transformer(vocab_size=18, dim=16, num_layers=2, num_heads=4, hidden_dim=24).build()
    state = jax.device_put(module.init(0), shardings)
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))
    assert bytes_per_device(state, shardings) == held
    assert sum(array.bytes_per_device for array in describe_sharding(specs, shardings)) == held


@pytest.mark.parametrize(
    ("mesh", "unused"),
    [
        ({"pipeline": 2, "data": 4}, ["pipeline"]),
        ({"expert": 8}, []),
        ({"seq": 2, "model": 2, "fsdp": 2}, []),
    ],
)
def test_axes_that_split_nothing_are_named(specs, mesh, unused):
    mesh, shardings = _shardings(specs, **mesh)
    assert unused_mesh_axes((shardings, _batch(ACTIVATION_RULES, mesh)), mesh) == unused


def test_without_its_rule_an_axis_splits_nothing(specs):
    mesh, shardings = _shardings(specs, seq=8)
    batch = _batch({**ACTIVATION_RULES, "time": ()}, mesh)
    assert unused_mesh_axes((shardings, batch), mesh) == ["seq"]
