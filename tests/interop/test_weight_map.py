"""Weight maps: all arrays of a model are in one piece, layers numbered as tokens pass them."""

import jax
import numpy as np
import pytest

from axcore.config import evolve, replace_config
from axcore.errors import ModuleError
from axcore.interop import (
    BoundMap,
    Chain,
    Concatenate,
    JoinAxes,
    Permute,
    Rule,
    Same,
    Split,
    SplitAxis,
    StackArrays,
    Transpose,
    UnstackArrays,
    below,
    family_named,
    interleaved,
    linear,
    same,
)
from axcore.layers import Pipeline, ScannedLayers, Sequence, Stack, alternating
from axcore.models import mixtral, transformer

WEIGHTS = family_named("llama").weights(None)
SIZES = {"vocab_size": 10, "dim": 8, "num_heads": 2, "hidden_dim": 12}
SIX = transformer(num_layers=6, **SIZES)


def with_stack(make):
    stack = SIX.decoder.stack
    return evolve(SIX, decoder=evolve(SIX.decoder, stack=make(stack, stack.layer)))


STACKS = {
    "unrolled": with_stack(lambda stack, layer: Stack.Config(num_layers=6, layer=layer)),
    "turns": with_stack(lambda stack, layer: alternating(stack, layer, layer, layer)),
    "turns and a rest": with_stack(
        lambda stack, layer: Sequence.Config(
            layers=(
                alternating(evolve(stack, num_layers=4), layer, layer),
                evolve(stack, num_layers=2),
            )
        )
    ),
    "rounds of a pipeline": with_stack(
        lambda stack, layer: Pipeline.Config(
            num_layers=6, layer=layer, num_micro_batches=1, num_rounds=2
        )
    ),
}
PLACES = {
    "unrolled": [("decoder.stack.layer.4.attention.q.weight", ())],
    "turns": [("decoder.stack.layer.layer.1.attention.q.weight", (1,))],
    "turns and a rest": [("decoder.stack.layer.1.layer.attention.q.weight", (0,))],
    "rounds of a pipeline": [("decoder.stack.layer.attention.q.weight", (1, 1))],
}
"""Where the queries of layer 4 are."""


@pytest.mark.parametrize("kind", STACKS)
def test_layers_have_the_numbers_in_which_tokens_pass_them(kind):
    bound = BoundMap(WEIGHTS, STACKS[kind].build().param_specs())
    assert bound.shapes == BoundMap(WEIGHTS, SIX.build().param_specs()).shapes
    (piece,) = (one for one in bound.pieces if "model.layers.4.self_attn.q_proj.weight" in one.hf)
    assert [(one.leaf, one.index) for one in piece.axcore] == PLACES[kind]


def test_every_array_without_a_rule_is_listed():
    with pytest.raises(ModuleError, match="no rule of the weight map fits 4 arrays") as caught:
        BoundMap(WEIGHTS, mixtral("toy").build().param_specs())
    for name in ("gate", "up", "down"):
        assert f"decoder.stack.layer.#.feed_forward.experts.expert.#.{name}.weight" in str(
            caught.value
        )


def test_an_array_in_two_rules_is_an_error():
    twice = (*WEIGHTS, same("head.weight", "other.weight"))
    with pytest.raises(ModuleError, match=r"has 1 arrays twice:\n.*head.weight"):
        BoundMap(twice, SIX.build().param_specs())


def test_two_arrays_of_one_name_are_an_error():
    clash = [rule for rule in WEIGHTS if rule.axcore != ("head.weight",)]
    with pytest.raises(ModuleError, match=r"arrays twice:\nmodel.norm.weight"):
        BoundMap((*clash, same("head.weight", "model.norm.weight")), SIX.build().param_specs())


def test_one_tensor_of_all_experts_names_each_by_its_number():
    cfg = mixtral("toy")
    experts = "decoder.stack.layer.{layer}.feed_forward.experts.expert"
    axcore = tuple(f"{experts}.{i}.gate.weight" for i in range(8))
    rules = [
        rule
        for rule in family_named("mixtral").weights(cfg)
        if f"{experts}.{{expert}}.gate.weight" not in rule.axcore
    ]
    stacked = Rule(axcore, ("layers.{layer}.gates",), StackArrays(8))
    bound = BoundMap((*rules, stacked), cfg.build().param_specs())
    assert bound.shapes["layers.1.gates"] == (8, 64, 96)
    (piece,) = (one for one in bound.pieces if one.hf == ("layers.1.gates",))
    assert [one.index for one in piece.axcore] == [(1, i) for i in range(8)]


def test_prefixes_go_before_every_name():
    (weight, bias) = below("a.{layer}", "b.{layer}", linear("q", "q_proj"))
    assert (weight.axcore, weight.hf) == (("a.{layer}.q.weight",), ("b.{layer}.q_proj.weight",))
    assert bias.hf == ("b.{layer}.q_proj.bias",)


def test_scans_and_loops_have_the_same_tensors_of_experts():
    cfg = mixtral("toy")
    unrolled = replace_config(
        cfg, ScannedLayers, lambda old: Stack.Config(num_layers=old.num_layers, layer=old.layer)
    )
    shapes = [family_named("mixtral").bind(one).shapes for one in (cfg, unrolled)]
    assert shapes[0] == shapes[1]
    assert "model.layers.1.block_sparse_moe.experts.7.w2.weight" in shapes[0]


HEADS, KEY, VALUE, LATENT = 3, 4, 2, 5
FUSED = Chain(
    Transpose(), SplitAxis(HEADS), Concatenate((KEY, VALUE), axis=1), JoinAxes(HEADS, axis=0)
)
"""Keys and values of every head after the other, as some families fuse them."""

CASES = (
    (Same(), [(2, 3)]),
    (Transpose(), [(2, 3), (4, 1)]),
    (SplitAxis(3), [(6, 2)]),
    (SplitAxis(3, axis=1), [(2, 6)]),
    (JoinAxes(3, axis=1), [(2, 3, 4)]),
    (Permute((2, 0, 1)), [(3, 2)]),
    (Permute((1, 2, 0), axis=1), [(2, 3)]),
    (Concatenate((2, 4)), [(2, 3), (4, 3)]),
    (Concatenate((2, 4), axis=-1), [(3, 2), (3, 4)]),
    (Split((1, 3), axis=1), [(2, 4)]),
    (StackArrays(2), [(2, 3)] * 4),
    (StackArrays(2, axis=-1), [(2, 3)] * 2),
    (UnstackArrays(3, axis=1), [(2, 3), (4, 3)]),
    (FUSED, [(LATENT, HEADS * KEY), (LATENT, HEADS * VALUE)]),
    (interleaved(6, kept=2, axis=1), [(3, 8)]),
)


def arrays(shapes):
    random = np.random.default_rng(0)
    return tuple(random.normal(size=shape).astype(np.float32) for shape in shapes)


@pytest.mark.parametrize(("transform", "shapes"), CASES, ids=lambda value: type(value).__name__)
def test_inverse_undoes_it_and_is_undone_by_it(transform, shapes):
    axcore = arrays(shapes)
    hf = transform(axcore)
    for before, after in zip(axcore, transform.inverse(hf), strict=True):
        assert np.array_equal(before, after)
    assert transform.inverse.inverse == transform
    told = jax.eval_shape(transform, axcore)
    assert [one.shape for one in told] == [one.shape for one in hf]


def test_fused_keys_and_values_follow_each_other_head_by_head():
    k, v = arrays([(LATENT, HEADS * KEY), (LATENT, HEADS * VALUE)])
    (fused,) = FUSED((k, v))
    rows = fused.reshape(HEADS, KEY + VALUE, LATENT)
    for head in range(HEADS):
        assert np.array_equal(rows[head, :KEY], k[:, head * KEY : (head + 1) * KEY].T)
        assert np.array_equal(rows[head, KEY:], v[:, head * VALUE : (head + 1) * VALUE].T)


def test_gates_and_inputs_of_all_experts_become_columns_by_turns():
    gates, ups = arrays([(4, 3, 2)] * 2)
    by_turns = Chain(StackArrays(4), StackArrays(2, axis=-1), JoinAxes(2, axis=2))
    (fused,) = by_turns((*gates, *ups))
    assert np.array_equal(fused[..., ::2], gates)
    assert np.array_equal(fused[..., 1::2], ups)


def test_half_split_rows_become_neighbouring_pairs():
    assert interleaved(6, kept=2).order == (0, 1, 2, 5, 3, 6, 4, 7)
    assert interleaved(4, rest=2).order == (0, 2, 1, 3, 4, 5)


def test_splits_and_transpositions_copy_nothing():
    whole = np.arange(12.0).reshape(3, 4)
    for part in Chain(Transpose(), Split((1, 3)))((whole,)):
        assert np.shares_memory(part, whole)
