"""Toy families through the trainer, the sampler and a mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_attention.models import deepseek_v3, gemma3, gpt2, llama4, mamba2, qwen3_next

from axcore.config import evolve, update_config
from axcore.data import ByteTokenizer
from axcore.inference import Generator, Sampling
from axcore.layers import Sequence
from axcore.module import functional
from axcore.parallel import (
    ACTIVATION_RULES,
    PARAM_RULES,
    ActivationSharding,
    make_mesh,
    param_shardings,
    sharding_activations,
)
from axcore.testing import small_experiment, trainer_on


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    [gpt2, *(pytest.param(fn, marks=pytest.mark.long) for fn in (gemma3, deepseek_v3, mamba2))],
)
def test_toy_is_trained_and_sampled(family, tmp_path):
    """By the trainer, for two steps; texts are sampled at the end."""
    cfg = update_config(
        small_experiment(tmp_path / "text"), {"model": family("toy"), "max_steps": 2}
    )
    result = trainer_on(cfg, 1).run(tmp_path / "run")
    assert np.isfinite(result.validation["loss"])
    assert result.validation["loss"] < 7.0


@pytest.mark.slow
def test_greedy_tokens_are_the_likeliest_of_the_model(state_of):
    """Through local layers, whose window is shorter than the prompt, and a global one."""
    model = gemma3("toy").build()
    state, tokenizer = state_of(model), ByteTokenizer.Config().build()
    generator = Generator(model, state, tokenizer, context=16)
    (drawn,) = generator.generate(
        "def f(x): ", max_tokens=1, sampling=Sampling(temperature=0.0), seed=0
    )
    prompt = jnp.asarray(tokenizer.encode_prompt("def f(x): "), jnp.int32)[None]
    run = jax.jit(lambda state, prompt: functional(model, state, prompt, method="logits")[0])
    logits = run(state, prompt)
    best = int(np.argmax(np.asarray(logits)[0, -1, :256]))
    assert drawn.text == tokenizer.decode([best])


@pytest.mark.parametrize(
    "family",
    [
        deepseek_v3,
        *(pytest.param(fn, marks=pytest.mark.long) for fn in (gemma3, llama4, qwen3_next)),
    ],
)
@pytest.mark.slow
def test_sharded_toy_equals_toy(family, state_of):
    """Stack of stacks, turns, latent heads, memories and experts, over `fsdp` 4 and `model` 2."""
    model = _small(family("toy")).build()
    state = state_of(model)
    tokens = np.arange(64, dtype=np.int32).reshape(8, 8)

    def logits(state, tokens):
        return functional(model, state, tokens, method="logits")[0]

    expected = jax.jit(logits)(state, tokens)
    mesh = make_mesh({"fsdp": 4, "model": 2}, jax.devices()[:8])
    shardings = param_shardings(model.param_specs(), PARAM_RULES, mesh)
    placed = jax.device_put(state, shardings)
    with jax.set_mesh(mesh), sharding_activations(ActivationSharding(mesh, ACTIVATION_RULES)):
        got = jax.jit(logits)(placed, tokens)
    np.testing.assert_allclose(got, expected, atol=1e-3)
    split = [leaf for leaf in jax.tree.leaves(shardings) if any(leaf.spec)]
    assert len(split) > len(jax.tree.leaves(shardings)) / 2


def _small(cfg):
    """Return the config with as few layers as its pattern has."""
    stacks = getattr(cfg.decoder.stack, "layers", (cfg.decoder.stack,))
    short = tuple(evolve(stack, num_layers=1) for stack in stacks)
    return update_config(cfg, {"decoder.stack": Sequence.Config(layers=short)})
