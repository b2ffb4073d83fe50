"""Cross-entropy on a mesh: the numbers of one device, and one sum of the head's gradient."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from axcore.ops import cross_entropy
from axcore.ops.contract import TOLERANCES, relative_error
from axcore.ops.cross_entropy import kernels
from axcore.parallel import ActivationSharding, make_mesh, sharding_activations

BATCH, TIME, WIDTH, VOCABULARY = 8, 16, 8, 48
COLLECTIVE = re.compile(r"(\w+\[[\d,]*\])\S* (?:all-\w+|reduce-scatter|collective-permute)\(")
MESHES = {
    "fsdp": {"fsdp": 4},
    "data_fsdp": {"data": 2, "fsdp": 2},
    "fsdp_seq": {"fsdp": 2, "seq": 2},
    "fsdp_model": {"fsdp": 2, "model": 2},
    "seq_model": {"seq": 2, "model": 2},
}


def arguments(batch=BATCH, dtype=jnp.float32):
    numbers = np.random.default_rng(0)
    return (
        jnp.asarray(numbers.standard_normal((batch, TIME, WIDTH)), dtype),
        jnp.asarray(numbers.standard_normal((VOCABULARY, WIDTH)), dtype),
        jnp.asarray(numbers.integers(0, VOCABULARY, (batch, TIME)).astype(np.int32)),
        jnp.asarray(numbers.uniform(size=(batch, TIME)).astype(np.float32)),
    )


def step_of(function):
    def loss(x, w, targets, weights):
        total, weight = function(x, w, targets, weights, vocabulary_first=True, z_loss=0.1)
        return total / weight

    return jax.value_and_grad(loss, argnums=(0, 1, 3))


def on_mesh(sizes, *given):
    """Return the program's text, and what it gives, with tokens and projection split."""
    mesh = make_mesh(sizes, jax.devices()[: math.prod(sizes.values())])
    by_token = NamedSharding(mesh, PartitionSpec(("data", "fsdp"), "seq"))
    if given[0].shape[0] % (sizes.get("data", 1) * sizes.get("fsdp", 1)):
        by_token = NamedSharding(mesh, PartitionSpec())
    by_vocabulary = NamedSharding(mesh, PartitionSpec("model", "fsdp"))
    shardings = (by_token, by_vocabulary, by_token, by_token)
    outputs = (None, (by_token, by_vocabulary, by_token))
    step = jax.jit(
        step_of(cross_entropy),
        in_shardings=shardings,
        out_shardings=outputs,
    )
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh)):
        program = step.lower(*given).compile()
        outputs = program(*jax.device_put(given, shardings))
    return program.as_text(), jax.tree.map(jnp.asarray, jax.device_get(outputs))


def in_loops(text):
    """Return the shapes that collectives inside of loops work on."""
    bodies = re.findall(r"body=%?([\w.\-]+)", text)
    assert bodies
    return [
        shape
        for body in bodies
        for shape in COLLECTIVE.findall(
            re.search(rf"^%{re.escape(body)} .*?^}}", text, re.S | re.M).group(0)
        )
    ]


@pytest.fixture
def in_a_loop(monkeypatch):
    monkeypatch.setattr(kernels, "CHUNK_BYTES", 1)
    monkeypatch.setattr(kernels, "MAX_UNROLLED", 0)
    monkeypatch.setattr(kernels, "MAX_CHUNKS", 4)


@pytest.mark.usefixtures("in_a_loop")
@pytest.mark.parametrize("name", MESHES)
@pytest.mark.quick_one_in(10)
def test_mesh_changes_no_number_and_sums_the_heads_gradient_once(name):
    given = arguments()
    text, got = on_mesh(MESHES[name], *given)
    want = jax.jit(step_of(cross_entropy))(*given)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert relative_error(one, other) <= TOLERANCES["float32"].backward
    looped = in_loops(text)
    if "model" not in MESHES[name]:
        assert not looped
    assert not [shape for shape in looped if str(VOCABULARY // 2) in shape]


def test_rows_that_do_not_divide_stay_whole():
    given = arguments(batch=6)
    _, got = on_mesh({"fsdp": 4}, *given)
    want = jax.jit(step_of(cross_entropy))(*given)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert relative_error(one, other) <= TOLERANCES["float32"].backward


@pytest.mark.slow
def test_narrow_gradients_are_summed_over_devices_in_float32():
    given = arguments(dtype=jnp.bfloat16)
    text, (_, (_, dw, _)) = on_mesh({"fsdp": 8}, *given)
    part = rf"f32\[{VOCABULARY},{WIDTH // 8}\]"
    assert re.search(rf"{part}\S* reduce-scatter\(", text)
    want = step_of(cross_entropy)(*given)[1][1]
    assert dw.dtype == jnp.bfloat16
    assert relative_error(dw, want) <= TOLERANCES["bfloat16"].backward


def test_replicas_of_parameters_sum_their_parts_of_the_heads_gradient_only():
    text, _ = on_mesh({"data": 2, "fsdp": 2}, *arguments())
    part = rf"f32\[{VOCABULARY},{WIDTH // 2}\]"
    assert re.search(rf"{part}\S* reduce-scatter\(", text)
    assert re.search(rf"{part}\S* all-reduce\(", text)
    quarter = rf"f32\[{VOCABULARY},{WIDTH // 4}\]"  # what all devices together could scatter
    assert not re.search(rf"{quarter}\S* reduce-scatter\(", text)
