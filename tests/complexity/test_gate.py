"""The gate: every feature in every family of models, on four targets, and learning on this one."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.models import deepseek_v2, deepseek_v3, gemma2, gemma3, gpt2, qwen3, qwen3_moe
from numpy_state import numpy_state

from axcore.complexity import trace_model, why_not_in
from axcore.config import diff_config, evolve, find_config, update_config
from axcore.data import Data
from axcore.errors import ConfigError, KernelError
from axcore.layers import FIRST_SOFT_TOKEN, Attention
from axcore.models import CausalLM, llama2, llama3, mistral, mixtral, qwen2
from axcore.module import DTypes, functional
from axcore.ops import KernelPolicy, use_policy
from axcore.plugins import Experiment, Feature, Hardware, plugin_host
from axcore.trainer import KernelsConfig, Trainer

pytestmark = pytest.mark.gate

FAMILIES = {
    fn.__name__: fn
    for fn in (
        *(llama2, llama3, mistral, mixtral, qwen2),
        *(gpt2, qwen3, qwen3_moe, gemma2, gemma3, deepseek_v2, deepseek_v3),
    )
}

TARGETS = ("tpu-v5p-8", "tpu-v5e-8", "gpu-h100-8", "trainium-trn2-16")

REFUSED = {
    ("int8", "trainium-trn2-16"): "wants int8",
    ("fp8", "tpu-v5p-8"): "wants float8",
    ("fp8", "tpu-v5e-8"): "wants float8",
    ("fp8", "trainium-trn2-16"): "wants float8",
}
"""What hardware cannot do, and how it says so; everything else runs everywhere."""

NOT_SERVED = {
    ("cudnn_attention", "gemma2"): "takes no soft cap",
    ("cudnn_attention", "deepseek_v2"): "takes no value width of 12, which the toy has",
    ("cudnn_attention", "deepseek_v3"): "takes no value width of 12, which the toy has",
}
"""Families that a kernel cannot serve; another is chosen, and the plan says why."""

KEEPS_ITS_OWN = {
    ("shared_cache", "qwen3"): "its norms of keys have weights of each layer",
    ("shared_cache", "qwen3_moe"): "its norms of keys have weights of each layer",
    ("shared_cache", "gemma3"): "its norms of keys have weights of each layer",
    ("shared_cache", "deepseek_v2"): "latents are made otherwise in each layer",
    ("shared_cache", "deepseek_v3"): "latents are made otherwise in each layer",
}
"""Families whose layers cannot have a cache in common, and why."""

FEATURES = {record.name: record for record in plugin_host().records(Feature)}

ADDED = [name for name, feature in FEATURES.items() if feature.apply]
"""Those that change a model; the others are what a chip brings to models as they are."""


def added(name: str, cfg):
    """Returns a config with a feature; as it is where the feature is built in."""
    feature = FEATURES[name]
    if feature.apply is None:
        return cfg
    built_in = feature.evidence.resolve()(plain_trace(cfg, feature.target)) is None
    return cfg if built_in else feature.apply.resolve()(cfg)


@functools.cache
def plain_trace(cfg, target: str):
    """Returns the trace of a config without a feature, which all features look at."""
    return trace_model(cfg, Hardware.parse(target))


def experiment(family: str):
    return Trainer.Config(
        model=evolve(FAMILIES[family]("toy"), dtypes=DTypes(compute="bfloat16")),
        data=Data.Config(seq_len=16, batch_size=2),
        max_steps=2,
        # Toys are narrower than what chips' kernels are made for.
        kernels=KernelsConfig(allow=("portable",)),
    )


def where(feature: Feature) -> tuple[str, ...]:
    """Returns the targets of a feature: its own, where it is about one kind of hardware."""
    return TARGETS if feature.apply is not None else (feature.target,)


def in_families(names: Sequence[str]):
    """Runs a test on each feature in each family; five sixths of them are long."""
    pairs = [
        pytest.param(
            *(name, family),
            marks=() if (column - row) % 6 == 0 else pytest.mark.long,
            id=f"{name}-{family}",
        )
        for row, name in enumerate(names)
        for column, family in enumerate(FAMILIES)
        if (name, family) not in KEEPS_ITS_OWN
    ]
    return pytest.mark.parametrize(("name", "family"), pairs)


def test_there_are_as_many_features_as_the_gate_is_about():
    assert len(FEATURES) >= 12


@in_families([*FEATURES])
def test_a_feature_is_in_every_family_on_every_target(name, family):
    feature = FEATURES[name]
    cfg = added(name, experiment(family))
    for target in where(feature):
        reason = REFUSED.get((name, target))
        if (name, family) in NOT_SERVED:
            assert "served by gpu_flash_attention" in why_not_in(
                feature, cfg, Hardware.parse(target)
            )
        elif reason is None:
            assert why_not_in(feature, cfg, Hardware.parse(target)) is None, target
        else:
            with pytest.raises(KernelError, match=reason):
                why_not_in(feature, cfg, Hardware.parse(target))


@in_families(ADDED)
def test_every_variant_runs_forward_and_backward(name, family):
    model = added(name, experiment(family)).model.build()
    policy = KernelPolicy(
        hardware=Hardware.parse("cpu-1"),
        pins={"quantized_dot": "emulated"} if name == "fp8" else {},
    )
    state = numpy_state(model.param_specs())
    batch = {
        "tokens": jnp.arange(32, dtype=jnp.int32).reshape(2, 16),
        "targets": jnp.arange(1, 33, dtype=jnp.int32).reshape(2, 16),
        "positions": jnp.tile(jnp.arange(16, dtype=jnp.int32), (2, 1)),
        "segment_ids": jnp.ones((2, 16), jnp.int32),
        "loss_weights": jnp.ones((2, 16), jnp.float32),
    }

    def loss(state):
        _, outputs = functional(model, state, batch, rng=0, training=True)
        return outputs.total_loss()

    inputs = getattr(model, "input_spec", None)
    if inputs is not None:
        batch["image"] = jnp.ones((2, *inputs.shape), inputs.dtype)
        soft = jnp.arange(model.num_soft_tokens, dtype=jnp.int32) + FIRST_SOFT_TOKEN
        batch["tokens"] = batch["tokens"].at[:, : len(soft)].set(soft)

    with use_policy(policy):
        value, gradient = jax.jit(jax.value_and_grad(loss, allow_int=True))(state)
    leaves = jax.tree.leaves(gradient)
    floats = [np.asarray(leaf) for leaf in leaves if leaf.dtype != jax.dtypes.float0]
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in floats)
    assert sum(float(np.abs(leaf).sum()) for leaf in floats) > 0


@pytest.mark.parametrize("name", ADDED)
def test_a_feature_changes_every_experiment_of_the_catalogue_or_is_in_it(name):
    """A model without attention, or whose layers make no pairs, says that it has no place."""
    feature = FEATURES[name]
    for record in plugin_host().records(Experiment):
        cfg = record.fn.resolve()()
        refusal = ""
        try:
            is_changed = bool(diff_config(cfg, feature.apply.resolve()(cfg)))
        except ConfigError as error:
            is_changed, refusal = False, error.what
        if refusal and name == "shared_cache":
            assert "cannot share in pairs" in refusal or refusal.startswith("no "), record.name
        elif refusal and name == "multi_token_prediction":
            assert refusal.endswith("contains no plain CausalLM"), record.name
            assert not any(
                type(found.node) is CausalLM.Config for found in find_config(cfg, CausalLM)
            )
        elif refusal and name == "pictures":
            assert refusal.startswith("no language model of text"), record.name
            assert type(cfg.model) is not CausalLM.Config or not hasattr(cfg.data, "tokenizer")
        elif refusal.startswith("keys have a projection of their own"):  # Whisper's lack a bias
            assert name.startswith("latent_"), record.name
        elif refusal and not find_config(cfg, Attention):
            has_no_place = refusal.startswith("no ") or refusal.endswith("; nothing was replaced")
            assert has_no_place, f"{record.name}: {refusal}"
        elif not is_changed and not getattr(cfg.data, "features", True):
            assert record.name == "multimodal-sft"  # its base brings them, and its model
        elif not is_changed:
            plain = update_config(cfg, {"mesh_rules": (), "kernels.allow": ("portable",)})
            assert why_not_in(feature, plain, Hardware.parse(feature.target)) is None, record.name
