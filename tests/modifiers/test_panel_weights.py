"""A model with its weights in panels is the one that was trained, adapters and experts included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity_pairs import MODELS

from axcore.config import find_config
from axcore.errors import ConfigError
from axcore.hardware import Hardware
from axcore.inference.cached_model import CachedModel
from axcore.layers import KVCacheConfig, Linear, LoRALinear, PanelLinear, QuantizedLinear
from axcore.models import transformer
from axcore.modifiers import LoRA, QuantizedWeights, with_panels
from axcore.module import functional
from axcore.ops import KernelPolicy, use_policy

HOST = Hardware.parse("cpu-1")
ROOM = KVCacheConfig(num_rows=2, capacity=64, max_length=64)
CFG = transformer(vocab_size=32, dim=64, num_layers=2, num_heads=4, hidden_dim=128)
TOKENS = np.asarray([[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]], np.int32)
ADAPTED = {
    "plain": CFG,
    "lora": LoRA(rank=4).apply(CFG, HOST),
    "dora": LoRA(rank=4, use_dora=True).apply(CFG, HOST),
    "mixture": MODELS["mixtral"](),
}


def paths_of(weights):
    found = jax.tree_util.tree_flatten_with_path(weights)[0]
    return {jax.tree_util.keystr(path) for path, _ in found}


@pytest.mark.parametrize("name", ADAPTED)
@pytest.mark.quick_one_in(2)
def test_a_model_in_panels_gives_the_logits_that_it_was_trained_for(name):
    model = ADAPTED[name].build()
    state = jax.tree.map(lambda x: x + 0.01, model.init(0))  # factors that correct something
    cached = CachedModel(model, state, ROOM)
    none, size = np.zeros(2, np.int32), np.full(2, TOKENS.shape[1], np.int32)
    padded = np.pad(TOKENS, ((0, 0), (0, 3)))
    found = cached.extend(cached.weights, cached.empty_caches(), padded, none, size)[0]
    expected = functional(model, state, jnp.asarray(TOKENS), method="logits")[0][:, -1]
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
    has_panels = any("weight_panels" in path for path in paths_of(cached.weights))
    assert has_panels == (name != "dora")


def test_portable_code_gets_no_panels():
    portable = KernelPolicy(hardware=HOST, pins={"decode_matmul": "portable"})
    model = CFG.build()
    with use_policy(portable):
        cached = CachedModel(model, model.init(0), ROOM)
    assert not any("weight_panels" in path for path in paths_of(cached.weights))


def test_factors_of_adapters_stay_and_so_does_a_base_whose_weight_is_read():
    cases = (
        (with_panels(ADAPTED["lora"]), PanelLinear),
        (QuantizedWeights().apply(ADAPTED["lora"]), QuantizedLinear),
        (with_panels(ADAPTED["dora"]), Linear),
    )
    for cfg, base in cases:
        found = find_config(cfg, LoRALinear)
        assert found
        for one in found:
            assert type(one.node.down) is type(one.node.up) is Linear.Config
            assert type(one.node.base) is base.Config


def test_no_base_of_dora_is_kept_narrow_without_a_word():
    with pytest.raises(ConfigError, match="no weight can be kept in int8"):
        QuantizedWeights().apply(ADAPTED["dora"])
