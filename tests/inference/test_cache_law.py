"""Any split of a text gives the logits of the plain forward pass: each family by each cache."""

import zlib

import numpy as np
import pytest
from cache_kinds import FLOAT8, KINDS, with_rounded_keys
from cache_law import PAGED, TOLERANCE, assert_splits_change_nothing, nearby, texts
from parity_pairs import MODELS, model_logits

from axcore.config import find_config, replace_config, update_config
from axcore.layers import CapacityLimited, Dropless, MoE
from axcore.modifiers import for_serving

BASIC = ("rows", "pages", "rings", "half", "int8", "latents", "shared", "state")
"""Kinds that `make test` runs in one family each, without experts: those compile for longer."""

SPECIAL = ("gpt2", "qwen3_next", "phi3-longrope", "deepseek_v2", "llama4_text", "gpt_oss")
"""Families whose layers keep something in a way of their own, or see it by another core."""

BY_CHANCE = (("slots", "deepseek_v3"), ("int8", "glm45"), ("latents-int8", "llama4_text"))
"""Where the logits of a text sampled at random often depend on the order of sums."""

CASES = [(kind, family) for kind in KINDS for family in KINDS[kind].families()]

TOLERANCES = {
    "qwen3_next": 3e-4,
    "qwen3_5": 3e-4,
    "qwen3_5_moe": 3e-4,
    "deepseek_v3": 3e-5,
    "kimi_k2": 3e-5,
}
"""Of families whose logits the rounding of weights to float32 changes by more than 1e-5."""

TOLERANCES_OF_ROUNDING = {"float16": 3e-4, "int8": 3e-4}
"""Of many numbers that are rounded so, some are between two roundings in every text: a processor
whose sums have another order takes the other one. A wrong scale changes logits by `BOUNDS`."""

BOUNDS = {"float16": 0.001, "int8": 0.03, FLOAT8: 0.15}
"""What such caches change logits of toy models by, as parts of the largest."""

AMPLIFIED = {"qwen3_5": 3}
"""By what these are larger: behind attention, its memories have queries and keys of length one."""


def seed_of(*names):
    return zlib.crc32(" ".join(names).encode())


def families_by_chance(kind):
    """Returns the families of a kind in an order that depends on both names alone."""
    return sorted(KINDS[kind].families(), key=lambda family: seed_of(kind, family))


def assert_law(kind, family):
    """Compares a cache that rounds with a plain forward pass that rounds the same numbers."""
    how = KINDS[kind]
    cfg, tolerance = how.of(family), TOLERANCES.get(family, TOLERANCE)
    tolerance = max(tolerance, TOLERANCES_OF_ROUNDING.get(how.rounding, 0))
    assert_splits_change_nothing(
        cfg,
        how.cache_config,
        plain_cfg=with_rounded_keys(cfg, how.rounding) if how.rounding else None,
        tolerance=tolerance,
        seed=seed_of(kind, family),
    )


def is_dense(family):
    return not find_config(MODELS[family](), MoE)


@pytest.mark.parametrize("kind", BASIC)
@pytest.mark.quick_one_in(4)
def test_any_split_of_a_text_gives_the_logits_of_the_whole(kind):
    assert_law(kind, next(filter(is_dense, families_by_chance(kind))))


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("kind", KINDS)
def test_any_split_does_so_by_every_kind_of_cache_and_those_that_come_together(kind):
    assert_law(kind, families_by_chance(kind)[-1])


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize("family", SPECIAL)
def test_any_split_does_so_by_every_kind_of_layer(family):
    assert_law("pages", family)


@pytest.mark.slow
@pytest.mark.every_case
@pytest.mark.parametrize(("kind", "family"), BY_CHANCE)
def test_any_split_does_so_whatever_the_roundings(kind, family):
    assert_law(kind, family)


@pytest.mark.slow
def test_every_kind_of_cache_builds_in_every_family_that_can_have_it():
    for kind, family in CASES:
        for_serving(KINDS[kind].of(family), KINDS[kind].cache_config).build()


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "family"), CASES)
def test_any_split_does_so_by_every_kind_of_cache_in_every_family(kind, family):
    assert_law(kind, family)


def logits_of(cfg, seed=0):
    model = cfg.build()
    return model_logits(model, model.init(1), texts(cfg, seed))


def assert_bounded(kind, family):
    cfg, rounding = KINDS[kind].of(family), KINDS[kind].rounding
    whole = logits_of(cfg)
    error = np.abs(logits_of(with_rounded_keys(cfg, rounding)) - whole).max()
    bound = BOUNDS[rounding] * AMPLIFIED.get(family, 1)
    assert 0 < error <= bound * np.abs(whole).max()


DENSE = [
    (kind, family)
    for kind, family in CASES
    if kind in ("half", "int8", "float8", "latents-int8") and is_dense(family)
]
"""Where experts are chosen by a maximum, a rounding may choose others: errors have no bound."""


@pytest.mark.parametrize(
    ("kind", "family"), [("half", "qwen3"), ("int8", "gemma"), ("float8", "mistral")]
)
@pytest.mark.quick_one_in(3)
def test_caches_of_fewer_bits_change_logits_within_the_stated_bound(kind, family):
    assert_bounded(kind, family)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "family"), DENSE)
def test_caches_of_fewer_bits_change_logits_within_the_stated_bound_in_dense_families(kind, family):
    assert_bounded(kind, family)


@pytest.mark.slow
@pytest.mark.parametrize("family", TOLERANCES)
def test_a_wider_tolerance_is_what_the_rounding_of_weights_changes(family):
    cfg, rng = MODELS[family](), np.random.default_rng(0)
    model = cfg.build()
    state, tokens = model.init(1), texts(cfg, 7)
    logits = model_logits(model, state, tokens)
    changes = [
        np.abs(model_logits(model, one, tokens) - logits).max() for one in nearby(state, rng)
    ]
    assert max(changes) > max(TOLERANCE, TOLERANCES[family] / 4)


@pytest.mark.slow
def test_latent_attention_whose_projections_have_a_bias_holds_to_the_law():
    cfg = update_config(MODELS["deepseek_v2"](), {"**.attention.linear.has_bias": True})
    assert_splits_change_nothing(cfg, PAGED)


@pytest.mark.slow
def test_experts_with_room_for_few_drop_no_token_where_the_model_serves():
    cfg = MODELS["mixtral"]()
    few = replace_config(cfg, Dropless, CapacityLimited.Config(factor=0.5))
    assert_splits_change_nothing(few, plain_cfg=cfg)
