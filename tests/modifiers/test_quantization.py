"""A model with low-precision weights serves what the original does, in less memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity_pairs import MODELS

from axcore.config import find_config, replace_config
from axcore.data import ByteTokenizer
from axcore.errors import ConfigError
from axcore.hardware import Hardware
from axcore.inference import Engine, EngineConfig, Request, Sampling
from axcore.inference.cached_model import CachedModel
from axcore.layers import KVCacheConfig, Linear, LoRALinear, PackedLinear, QuantizedLinear
from axcore.layers.quantization.stored_weights import (
    ROW_SCALE,
    ROW_VALUES,
    SCALE,
    VALUES,
    kept_weight,
)
from axcore.models import TiedHead, UntiedHead, transformer
from axcore.models.causal_lm import QuantizedHead
from axcore.modifiers import NAMED_WEIGHTS, LoRA, QuantizedWeights, with_packed_weights
from axcore.module import DTypes, functional
from axcore.ops import KernelPolicy, full_precision_weight, unpacked_int4, use_policy
from axcore.parallel import make_mesh

ROOM = KVCacheConfig(num_rows=2, capacity=64, max_length=64)
CFG = transformer(vocab_size=32, dim=64, num_layers=2, num_heads=4, hidden_dim=128)
TEXT_CFG = transformer(vocab_size=264, dim=32, num_layers=1, num_heads=2, hidden_dim=32)
MIXTURES = (
    "deepseek_v2",
    "deepseek_v3",
    "glm45",
    "glm47_flash",
    "gpt_oss",
    "granite4",
    "granitemoe",
    "kimi_k2",
    "llama4_text",
    "minimax_m2",
    "nemotron_h_moe",
    "olmoe",
    "phimoe",
    "qwen2_moe",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next",
)
TOKENS = np.asarray([[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]], np.int32)


def served(cfg, quantization=None):
    model = cfg.build()
    return CachedModel(model, model.init(0), ROOM, quantization=quantization)


def read(cached, tokens):
    """Returns the logits after each row of tokens."""
    tokens = np.asarray(tokens, np.int32)
    none, size = np.zeros(2, np.int32), np.full(2, tokens.shape[1], np.int32)
    padded = np.pad(tokens, ((0, 0), (0, 8 - tokens.shape[1])))
    return cached.extend(cached.weights, cached.empty_caches(), padded, none, size)[0]


def widened(weights):
    """Returns weights in full precision that are the same numbers as those in low precision."""
    if not isinstance(weights, dict):
        return weights
    if ROW_VALUES in weights:
        return {"weight": weights[ROW_VALUES].astype(jnp.float32) * weights[ROW_SCALE]}
    if VALUES not in weights:
        return {name: widened(below) for name, below in weights.items()}
    values, scale = weights[VALUES], weights[SCALE]
    one = lambda values, scale: full_precision_weight(  # noqa: E731
        unpacked_int4(values) if values.dtype == "uint8" else values, scale
    )
    wide = one(values, scale) if values.ndim == 2 else jax.vmap(one)(values, scale)
    rest = {name: leaf for name, leaf in weights.items() if name not in (VALUES, SCALE)}
    return {**rest, "weight": wide}


def num_bytes(weights):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(weights))


@pytest.mark.parametrize(
    ("name", "error", "share"), [("int8", 0.02, 0.32), ("int4", 0.25, 0.25), ("float8", 0.1, 0.32)]
)
@pytest.mark.quick_one_in(3)
def test_logits_stay_close_and_memory_is_less(name, error, share):
    wide, narrow = served(CFG), served(CFG, NAMED_WEIGHTS[name])
    expected, found = read(wide, TOKENS), read(narrow, TOKENS)
    scale = float(np.std(np.asarray(expected)))
    distance = float(np.abs(np.asarray(found - expected)).max())
    assert 0 < distance < error * scale * 3
    assert num_bytes(narrow.weights) < share * num_bytes(wide.weights)


def test_an_odd_number_of_groups_of_int4_is_split():
    cfg = transformer(vocab_size=32, dim=96, num_layers=1, num_heads=4, hidden_dim=96)
    wide, narrow = served(cfg), served(cfg, NAMED_WEIGHTS["int4"])
    expected, found = (np.asarray(read(one, TOKENS)) for one in (wide, narrow))
    assert 0 < np.abs(found - expected).max() < 0.75 * np.std(expected)


@pytest.mark.parametrize("family", ["mistral", "mamba2"])
@pytest.mark.quick_one_in(2)
def test_families_serve_with_narrow_weights(family):
    cfg = MODELS[family]()
    wide, narrow = served(cfg), served(cfg, NAMED_WEIGHTS["int8"])
    tokens = TOKENS % cfg.vocab_size
    expected, found = np.asarray(read(wide, tokens)), np.asarray(read(narrow, tokens))
    assert 0 < np.abs(found - expected).max() < 0.1 * np.abs(expected).max()


def of_experts(weights):
    """Returns what experts are made of, by path."""
    found = jax.tree_util.tree_flatten_with_path(weights)[0]
    return {jax.tree_util.keystr(path): leaf for path, leaf in found if "experts" in str(path)}


MATRICES = KernelPolicy(hardware=Hardware.parse("cpu-1"), pins={"decode_matmul": "portable"})
"""Of portable code, which has no use for panels."""


def assert_experts_are_narrow(family, name):
    """Checks that the model is the one whose weights are the rounded numbers, experts included."""
    cfg = MODELS[family]()
    wide, narrow = served(cfg), served(cfg, NAMED_WEIGHTS[name])
    kept, before = of_experts(narrow.weights), of_experts(wide.weights)
    assert before
    assert not any("'weight'" in path for path in kept)
    assert num_bytes(list(kept.values())) < 0.4 * num_bytes(list(before.values()))
    tokens = TOKENS % cfg.vocab_size
    found = np.asarray(read(narrow, tokens))
    wide.weights = widened(narrow.weights)
    expected = np.asarray(read(wide, tokens))
    np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", NAMED_WEIGHTS)
@pytest.mark.quick_one_in(3)
def test_a_mixture_keeps_the_weights_of_its_experts_narrow(name):
    with use_policy(MATRICES):
        assert_experts_are_narrow("mixtral", name)


@pytest.mark.slow
@pytest.mark.parametrize("family", MIXTURES)
def test_every_mixture_does(family):
    with use_policy(MATRICES):
        assert_experts_are_narrow(family, "int8")


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["model", "expert"])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_narrow_experts_on_a_mesh_give_what_one_device_does(name, axis):
    model = MODELS["mixtral"]().build()
    mesh = make_mesh({axis: 2}, jax.devices()[:2])
    state, how = model.init(0), {"quantization": NAMED_WEIGHTS[name]}
    alone, split = (CachedModel(model, state, ROOM, mesh=one, **how) for one in (None, mesh))
    parts = {leaf.addressable_shards[0].data.nbytes for leaf in of_experts(split.weights).values()}
    assert max(parts) * 2 == max(leaf.nbytes for leaf in of_experts(alone.weights).values())
    np.testing.assert_allclose(read(split, TOKENS), read(alone, TOKENS), atol=1e-4)


def test_new_weights_are_made_narrow_too():
    model = CFG.build()
    cached = CachedModel(model, model.init(0), ROOM, quantization=QuantizedWeights())
    other = CachedModel(model, model.init(1), ROOM, quantization=QuantizedWeights())
    taken = cached.weights_of(model.init(1))
    jax.tree.map(np.testing.assert_array_equal, taken, other.weights)


def test_embedding_and_router_stay_wide_and_the_head_where_that_is_said():
    changed = QuantizedWeights().apply(CFG)
    paths = [found.path for found in find_config(changed, QuantizedLinear)]
    assert paths
    assert not any("head" in path or "embedding" in path for path in paths)
    assert type(changed.head) is QuantizedHead.Config
    assert QuantizedWeights(head=None).apply(CFG).head == CFG.head
    tied = replace_config(CFG, UntiedHead, TiedHead.Config())
    assert QuantizedWeights().apply(tied).head == tied.head


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_in_int8_compares_with_rounded_vectors(dtype):
    sizes = {"dim": 32, "vocab_size": 100, "soft_cap": 5.0, "dtypes": DTypes(compute=dtype)}
    wide, narrow = (kind.Config(**sizes).build() for kind in (UntiedHead, QuantizedHead))
    weight = wide.init(0)["weight"]
    kept = kept_weight(narrow.param_specs(), weight)
    rounded = np.asarray(kept[ROW_VALUES], np.float32) * np.asarray(kept[ROW_SCALE])
    largest = np.abs(np.asarray(weight)).max(1, keepdims=True)
    assert (np.abs(rounded - weight) <= largest / 253).all()
    x = jax.random.normal(jax.random.key(0), (2, 3, 32), dtype)
    table, targets = jnp.zeros((100, 32), dtype), jnp.ones((2, 3), jnp.int32)
    for method, more in (("forward", ()), ("log_probs", (targets,))):
        expected = functional(
            wide, {"weight": jnp.asarray(rounded)}, x, table, *more, method=method
        )
        found = functional(narrow, kept, x, table, *more, method=method)
        np.testing.assert_allclose(found[0], expected[0], atol=1e-5 if dtype == "float32" else 0.05)


def test_a_model_without_a_layer_to_change_is_refused():
    with pytest.raises(ConfigError, match="no weight can be kept in int8: of 3 linear layers all"):
        QuantizedWeights(exclude=("**",)).apply(CFG)


@pytest.mark.slow
def test_an_engine_serves_narrow_weights_and_takes_over_new_ones():
    model, tokenizer = TEXT_CFG.build(), ByteTokenizer.Config().build()
    cfg = EngineConfig(
        max_num_seqs=1,
        max_length=32,
        page_size=8,
        max_num_batched_tokens=16,
        num_decode_steps=1,
        weights="int8",
    )
    request = Request(prompt=tuple(b"ab"), max_tokens=6, sampling=Sampling(temperature=0))
    with Engine(model, model.init(0), tokenizer, cfg) as engine:
        first = engine.submit(request).result(60)
        engine.replace_weights(model.init(5))
        second = engine.submit(request).result(60)
    for seed, found in ((0, first), (5, second)):
        cached = CachedModel(model, model.init(seed), ROOM, quantization=QuantizedWeights())
        text = list(b"ab")
        for token in found.tokens:
            logits = np.array(read(cached, [text, text])[0])
            logits[259:] = logits[[tokenizer.bos_id, tokenizer.pad_id]] = -np.inf
            assert token.id == logits.argmax()
            text.append(token.id)


HOST = Hardware.parse("cpu-1")
TWO_TEXTS = np.asarray([[1, 2, 3, 4, 5], [9, 8, 7, 6, 5]], np.int32)
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
    none, size = np.zeros(2, np.int32), np.full(2, TWO_TEXTS.shape[1], np.int32)
    padded = np.pad(TWO_TEXTS, ((0, 0), (0, 3)))
    found = cached.extend(cached.weights, cached.empty_caches(), padded, none, size)[0]
    expected = functional(model, state, jnp.asarray(TWO_TEXTS), method="logits")[0][:, -1]
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
        (with_packed_weights(ADAPTED["lora"]), PackedLinear),
        (QuantizedWeights().apply(ADAPTED["lora"]), QuantizedLinear),
        (with_packed_weights(ADAPTED["dora"]), Linear),
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
