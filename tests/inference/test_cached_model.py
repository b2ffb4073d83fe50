"""Every family continues texts from its caches, whether rows or pages hold them."""

import re

import attrs
import jax
import jax.numpy as jnp
import pytest
from cache_law import CACHE_CONFIG
from parity_pairs import MODELS

from axcore.errors import ModuleError
from axcore.hardware import Hardware
from axcore.inference.cached_model import CachedModel
from axcore.layers import continued_rows
from axcore.models import transformer
from axcore.module import functional
from axcore.ops import KernelPolicy, use_policy
from axcore.ops.decode_matmul.kernels import HOST_PARTS


def test_a_model_that_keeps_nothing_does_not_go_on_from_earlier_tokens():
    model = MODELS["mistral"]().build()
    info = continued_rows(
        jnp.ones((1, 2), jnp.int32), jnp.ones(1, jnp.int32), jnp.ones(1, jnp.int32)
    )
    with pytest.raises(ModuleError, match="keeps no keys and values"):
        functional(model, model.init(0), jnp.ones((1, 2), jnp.int32), info, method="logits")


PORTABLE = KernelPolicy(hardware=Hardware.parse("cpu-1"), pins={"decode_matmul": "portable"})


@pytest.mark.parametrize(("num_tokens", "number"), [(1, 8), (2, 1)])
@pytest.mark.quick_one_in(2)
def test_products_of_one_row_are_computed_in_parts(num_tokens, number):
    # Of two tokens only the head's, whose logits after the last one are wanted.
    model = transformer(vocab_size=512, dim=256, num_layers=1, num_heads=2, hidden_dim=512).build()
    with use_policy(PORTABLE):
        served = CachedModel(model, model.init(0), attrs.evolve(CACHE_CONFIG, num_rows=1))
        one = jnp.ones(1, jnp.int32)
        tokens = jnp.zeros((1, num_tokens), jnp.int32)
        args = served.weights, served.empty_caches(), tokens, one, one
        program = str(jax.make_jaxpr(served.step)(*args))
    products = re.findall(r"f32\[(\d+),1,\d+\] = dot_general", program)
    assert products.count(str(HOST_PARTS)) == number
