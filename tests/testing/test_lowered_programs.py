"""A lowered program is the same in other words, and another with any other number in it."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from axcore._jax_compat import handing_over_programs
from axcore.parallel import make_mesh
from axcore.testing.programs import program_digest

SOURCE = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

def scale_rows(x_ref, y_ref):
    y_ref[...] = x_ref[...] * 2.0

@jax.jit
def shift(x):
    return {"y": x + 1.0}

def model(x):
    kernel = pl.pallas_call(scale_rows, out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype), name="k")
    with jax.named_scope("layer"):
        return shift(kernel(x))
"""
KERNELS_OF = "tpu"
"""jax lowers kernels for this platform without its compiler."""


def digest_of_source(source):
    named = {}
    exec(compile(source, f"source_{len(source)}.py", "exec"), named)
    traced = jax.jit(named["model"]).trace(jax.ShapeDtypeStruct((8, 128), "float32"))
    module = traced.lower(lowering_platforms=(KERNELS_OF,)).compiler_ir("stablehlo")
    return program_digest(module, b"")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("def scale", "# A comment.\n\ndef scale"),
        ("scale_rows", "multiply"),  # a kernel's function
        ("shift", "increment"),  # a function that is lowered as one
        ("model(x)", "model(array, *, x=None):\n    x = array\n    return whole(x)\ndef whole(x)"),
        ('"y"', '"z"'),
    ],
)
def test_a_program_is_the_same_in_other_words(old, new):
    assert old in SOURCE
    assert digest_of_source(SOURCE.replace(old, new)) == digest_of_source(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("* 2.0", "* 3.0"),  # within a kernel
        ("+ 1.0", "+ 2.0"),
        ("x + 1.0", "x.astype('bfloat16') + 1.0"),
        ('"layer"', '"layers"'),  # reports read scopes,
        ('"k"', '"kernel"'),  # and names of kernels
    ],
)
def test_a_program_is_another_with_another_number_type_scope_or_name_of_a_kernel(old, new):
    assert old in SOURCE
    assert digest_of_source(SOURCE.replace(old, new)) != digest_of_source(SOURCE)


def compiled_digest(*, devices=2, options=None):
    """The digest of a sum over a mesh as it is handed to the compiler."""
    mesh = make_mesh({"fsdp": devices}, jax.devices("cpu")[:devices])
    split = NamedSharding(mesh, PartitionSpec("fsdp"))
    x = jax.ShapeDtypeStruct((8,), "float32", sharding=split)
    seen = []
    with handing_over_programs(lambda *program: seen.append(program_digest(*program))):
        jax.jit(lambda x: jnp.sum(x)).lower(x).compile(compiler_options=options)
    (digest,) = seen
    return digest


def test_a_compiler_option_and_a_mesh_are_parts_of_a_program():
    options = {"xla_embed_ir_in_executable": True}
    digests = [compiled_digest(), compiled_digest(options=options), compiled_digest(devices=4)]
    assert len(set(digests)) == 3
    assert compiled_digest() == digests[0]
