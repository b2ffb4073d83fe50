"""`transformer(...)`: its text, its parameters by formula, and how they begin."""

import math
from pathlib import Path

import jax
import numpy as np
import pytest

from axcore.config import from_json, render_config, to_json
from axcore.models import transformer
from axcore.module import ParamSpec, count_params

GOLDEN = Path(__file__).parent / "golden" / "transformer.txt"


def test_config_reads_as_its_golden_text():
    cfg = transformer(
        vocab_size=256, dim=64, num_layers=3, num_heads=8, num_kv_heads=2, hidden_dim=160
    )
    assert render_config(cfg).rstrip() + "\n" == GOLDEN.read_text()
    assert from_json(to_json(cfg)) == cfg


@pytest.mark.parametrize(
    ("vocab", "dim", "layers", "heads", "kv_heads", "hidden"),
    [(264, 128, 4, 4, None, 352), (264, 128, 4, 4, 1, 384), (32_000, 4096, 32, 32, 32, 11_008)],
)
def test_parameters_are_as_many_as_the_formula_says(vocab, dim, layers, heads, kv_heads, hidden):
    cfg = transformer(
        vocab_size=vocab,
        dim=dim,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        hidden_dim=hidden,
    )
    kv_width = dim // heads * (kv_heads or heads)
    layer = 2 * dim * dim + 2 * dim * kv_width + 3 * dim * hidden + 2 * dim
    assert count_params(cfg.build().param_specs()) == 2 * vocab * dim + layers * layer + dim


def test_llama_2_7b_has_its_published_size():
    cfg = transformer(vocab_size=32_000, dim=4096, num_layers=32, num_heads=32, hidden_dim=11_008)
    assert count_params(cfg.build().param_specs()) == 6_738_415_616


def _specs(cfg):
    return jax.tree.leaves(
        cfg.build().param_specs(), is_leaf=lambda leaf: isinstance(leaf, ParamSpec)
    )


def test_matrices_decay_and_norms_do_not(cfg):
    assert {spec.name.split(".")[-2] for spec in _specs(cfg) if not spec.decay} == {"norm"}
    assert {spec.name.split(".")[-2] for spec in _specs(cfg) if spec.decay} == {
        *("embedding", "q", "k", "v", "out", "gate", "up", "down", "head")
    }


@pytest.mark.slow
def test_matrices_begin_with_the_deviation_of_their_inputs():
    cfg = transformer(vocab_size=100, dim=64, num_layers=2, num_heads=4, hidden_dim=96)
    module = cfg.build()
    state = jax.jit(module.init)(jax.random.key(0))
    for spec, leaf in zip(_specs(cfg), jax.tree.leaves(state), strict=True):
        if spec.name.endswith("norm.weight"):
            assert np.all(np.asarray(leaf) == 1.0)
        else:
            fan_in = spec.shape[-1] if spec.name == "head.weight" else spec.shape[-2]
            expected = 0.02 if "embedding" in spec.name else 1 / math.sqrt(fan_in)
            assert np.std(leaf) == pytest.approx(expected, rel=0.1), spec.name
            assert abs(np.mean(leaf)) < 0.1 * expected
