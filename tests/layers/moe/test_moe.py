"""Mixtures of experts: laws that hold whatever the weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from axcore.config import REQUIRED, config, evolve, replace_config
from axcore.errors import ConfigError
from axcore.layers import (
    CapacityLimited,
    Dot,
    Dropless,
    FeedForward,
    GroupLimit,
    Linear,
    MoE,
    PlainFeedForward,
    RMSNorm,
    Router,
    TransformerLayer,
)
from axcore.layers.tokens import TOKEN_MASK
from axcore.module import Module, functional

DIM, HIDDEN = 8, 12
GATED = FeedForward.Config(hidden_dim=HIDDEN)
BIASED = PlainFeedForward.Config(hidden_dim=HIDDEN, linear=Linear.Config(has_bias=True))
ROUTERS = {
    "softmax": Router.Config(),
    "softmax_as_it_is": Router.Config(is_normalized=False),
    "sigmoid": Router.Config(score="sigmoid", scale=2.5),
    "bias": Router.Config(score="sigmoid", bias_rate=0.1, balance_loss=0.0),
    "groups": Router.Config(groups=GroupLimit(num_groups=2, num_kept=1)),
}
KINDS = {"dropless": Dropless.Config(), "roomy": CapacityLimited.Config(factor=4.0)}


def moe(expert=GATED, num_experts=4, top_k=2, **fields):
    return MoE.Config(dim=DIM, expert=expert, num_experts=num_experts, top_k=top_k, **fields)


def run(module, state, *args, **options):
    """Returns the result and the outputs of one compiled call."""
    compiled = jax.jit(lambda state, args: functional(module, state, *args, **options))
    return compiled(state, args)


def experts_of(state):
    return state["experts"]["expert"]


def one_of(state, index):
    return jax.tree.map(lambda leaf: leaf[index], experts_of(state))


@pytest.fixture
def x(random):
    return jnp.asarray(random(3, 5, DIM))


@pytest.mark.parametrize("expert", [GATED, BIASED], ids=["gated", "biased"])
@pytest.mark.parametrize("dispatch", KINDS.values(), ids=KINDS)
@pytest.mark.quick_one_in(8)
def test_one_expert_equals_dense(call, perturbed, x, expert, dispatch):
    layer = moe(expert, num_experts=1, top_k=1, dispatch=dispatch).build()
    state = perturbed(layer.init(0))
    dense = call(evolve(expert, dim=DIM).build(), one_of(state, 0), x)
    np.testing.assert_allclose(call(layer, state, x), dense, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("expert", [GATED, BIASED], ids=["gated", "biased"])
@pytest.mark.parametrize("dispatch", KINDS.values(), ids=KINDS)
@pytest.mark.quick_one_in(8)
def test_equal_experts_equal_dense(call, perturbed, x, expert, dispatch):
    layer = moe(expert, dispatch=dispatch).build()
    state = perturbed(layer.init(0))
    state["experts"]["expert"] = jax.tree.map(
        lambda leaf: np.broadcast_to(leaf[:1], leaf.shape), experts_of(state)
    )
    dense = call(evolve(expert, dim=DIM).build(), one_of(state, 0), x)
    np.testing.assert_allclose(call(layer, state, x), dense, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("router", ROUTERS.values(), ids=ROUTERS)
@pytest.mark.quick_one_in(10)
def test_output_is_the_weighted_sum_over_chosen_experts(call, perturbed, x, router):
    layer = moe(BIASED, router=router).build()
    state = perturbed(layer.init(0))
    dense = evolve(BIASED, dim=DIM).build()
    outputs = np.stack([call(dense, one_of(state, e), x) for e in range(4)])
    routing = call(layer.router, state["router"], x)
    expected = np.zeros_like(x)
    for place in np.ndindex(*routing.experts.shape):
        e, weight = routing.experts[place], routing.weights[place]
        expected[place[:2]] += weight * outputs[e][place[:2]]
    np.testing.assert_allclose(call(layer, state, x), expected, rtol=1e-4, atol=1e-5)


def test_order_of_experts_does_not_matter(call, perturbed, x):
    layer = moe().build()
    state = perturbed(layer.init(0))
    order = np.array([2, 0, 3, 1])
    permuted = {
        "experts": jax.tree.map(lambda leaf: leaf[order], state["experts"]),
        "router": jax.tree.map(lambda leaf: leaf[:, order], state["router"]),
    }
    np.testing.assert_allclose(call(layer, permuted, x), call(layer, state, x), atol=1e-6)


def test_room_for_all_equals_dropless_from_the_same_seed(call, x):
    dropless, roomy = (moe(BIASED, dispatch=kind).build() for kind in KINDS.values())
    state, roomy_state = dropless.init(0), roomy.init(0)
    jax.tree.map(np.testing.assert_array_equal, state, roomy_state)
    np.testing.assert_allclose(call(dropless, state, x), call(roomy, state, x), atol=1e-6)


def test_padding_moves_no_other_token(call, perturbed, x):
    layer = moe().build()
    state = perturbed(layer.init(0))
    padded = np.concatenate([x, np.zeros((3, 2, DIM), np.float32)], axis=1)
    np.testing.assert_allclose(call(layer, state, padded)[:, :5], call(layer, state, x), atol=1e-6)


def test_dropless_keeps_every_token_when_all_go_to_one_expert(call, x):
    layer = moe(top_k=1).build()
    state = layer.init(0)
    state["router"]["linear"]["weight"] = np.zeros((DIM, 4), np.float32)  # a tie: expert 0
    dense = call(evolve(GATED, dim=DIM).build(), one_of(state, 0), x)
    np.testing.assert_allclose(call(layer, state, x), dense / 1.0, rtol=1e-5, atol=1e-6)


def test_choices_without_room_are_dropped_in_order_and_counted(x):
    """All five tokens of a row go to expert 0, which has room for ceil(0.8 * 5 / 4) = 1."""
    layer = moe(top_k=1, dispatch=CapacityLimited.Config(factor=0.8)).build()
    state = layer.init(0)
    state["router"]["linear"]["weight"] = np.zeros((DIM, 4), np.float32)
    y, outputs = run(layer, state, x)
    dense = run(evolve(GATED, dim=DIM).build(), one_of(state, 0), x)[0]
    np.testing.assert_allclose(y[:, :1], dense[:, :1], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(y[:, 1:], np.zeros_like(y[:, 1:]))
    np.testing.assert_allclose(outputs.summaries["experts.dropped"], 0.8)
    np.testing.assert_array_equal(outputs.summaries["router.load"], [1, 0, 0, 0])


@pytest.mark.slow
def test_shared_expert_is_added(call, perturbed, x):
    layer = moe(shared=BIASED).build()
    state = perturbed(layer.init(0))
    routed = {name: state[name] for name in ("router", "experts")}
    shared = call(evolve(BIASED, dim=DIM).build(), state["shared"], x)
    expected = call(moe().build(), routed, x) + shared
    np.testing.assert_allclose(call(layer, state, x), expected, rtol=1e-5, atol=1e-6)


# -- Choosing ---------------------------------------------------------------------------------


def router(**fields):
    return Router.Config(dim=DIM, num_experts=4, top_k=2, **fields).build()


def test_normalised_weights_add_up_to_the_scale(call, x):
    layer = router(score="sigmoid", scale=2.5)
    weights = call(layer, layer.init(0), x).weights
    np.testing.assert_allclose(weights.sum(-1), 2.5, rtol=1e-6)


def test_bias_decides_who_is_chosen_and_not_how_much_counts(call, x):
    layer = router(score="sigmoid", bias_rate=0.1, is_normalized=False)
    state = layer.init(0)
    state["bias"] = np.array([0, 0, 5, 5], np.float32)
    routing = call(layer, state, x)
    assert set(np.unique(routing.experts)) == {2, 3}
    logits = x @ np.asarray(state["linear"]["weight"])
    scores = 1 / (1 + np.exp(-np.take_along_axis(logits, routing.experts, -1)))
    np.testing.assert_allclose(routing.weights, scores, rtol=1e-5)


def test_bias_moves_against_the_load_in_training_only(x):
    layer = router(bias_rate=0.1)
    state = layer.init(0)
    state["bias"] = np.array([0, 0, 5, 5], np.float32)
    _, outputs = run(layer, state, x, training=True)
    np.testing.assert_allclose(outputs.updates[("bias",)], [0.1, 0.1, 4.9, 4.9], rtol=1e-6)
    assert run(layer, state, x)[1].updates == {}


@pytest.mark.parametrize("rated_by", [1, 2])
def test_groups_are_rated_by_their_best_experts(rated_by):
    limit = GroupLimit(num_groups=2, num_kept=1, rated_by=rated_by)
    scores = np.array([[[0.9, 0.1, 0.6, 0.5]]], np.float32)
    is_kept = np.isfinite(limit.limited(jnp.asarray(scores)))[0, 0]
    first = [True, True, False, False]
    assert is_kept.tolist() == (first if rated_by == 1 else first[::-1])


class Decoding(Module):
    """Shows a router which tokens are real."""

    @config
    class Config(Module.Config):
        router: Module.Config = REQUIRED

    def setup(self, cfg):
        self.router = cfg.router.build()

    def forward(self, x, is_real=None):
        if is_real is not None:
            self.set_shared(TOKEN_MASK, is_real)
        return self.router(x)


@pytest.mark.parametrize("over", ["row", "batch"])
def test_padding_counts_for_no_loss_and_no_statistic(x, over):
    layer = router(z_loss=0.1, balance_over=over)
    decoding = Decoding.Config(router=layer.config).build()
    state = decoding.init(0)
    _, alone = run(decoding, state, x[:, :3])
    _, padded = run(decoding, state, x, np.arange(5)[None] < np.full((3, 1), 3))
    assert alone.losses.keys() == padded.losses.keys() == {"router.load_balance", "router.z"}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        (alone.losses, alone.summaries),
        (padded.losses, padded.summaries),
    )


def test_balance_loss_is_one_for_an_even_load_and_more_for_any_other(x):
    layer = Router.Config(dim=4, num_experts=4, top_k=1, balance_loss=1.0).build()
    state = {"linear": {"weight": 20 * np.eye(4, dtype=np.float32)}}
    even = jnp.eye(4, dtype=jnp.float32)[None]
    uneven = even[:, jnp.array([0, 0, 1, 2])]
    losses = [run(layer, state, x)[1].total_loss() for x in (even, uneven)]
    np.testing.assert_allclose(losses, [1.0, 4 * (0.5**2 + 2 * 0.25**2)], rtol=1e-5)


# -- Bad input --------------------------------------------------------------------------------


class Normed(Module):
    """An expert with a norm, whose scale is not a linear layer's."""

    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        norm: Module.Config = RMSNorm.Config()
        linear: Module.Config = Linear.Config()

    def setup(self, cfg):
        self.norm = cfg.norm.build(dim=cfg.dim)
        self.linear = cfg.linear.build(in_dim=cfg.dim, out_dim=cfg.dim, axes=("embed", "mlp"))

    def forward(self, x):
        return self.norm(self.linear(x))


class Halved(Dot):
    """A product that knows nothing of groups."""

    def forward(self, x, weight):
        return x @ weight / 2


HALVED = FeedForward.Config(hidden_dim=8, linear=Linear.Config(dot=Halved.Config()))
GROUPS = Router.Config(groups=GroupLimit(num_groups=2, num_kept=1))


@pytest.mark.parametrize(
    ("cfg", "what"),
    [
        (moe(top_k=5), "top_k is 5, with 4 experts"),
        (moe(num_experts=3, router=GROUPS), "3 experts do not divide into 2 groups"),
        (moe(top_k=3, router=GROUPS), "1 of 2 groups with 2 experts each are kept, for 3 choices"),
        (moe(router=Router.Config(z_loss=-1.0)), "z_loss is -1.0; expected 0 or more"),
        (
            moe(dispatch=CapacityLimited.Config(factor=0.0)),
            "factor is 0.0; expected a number",
        ),
        (moe(Normed.Config()), "an expert has a RMSNorm, whose parameters are not those of a"),
        (moe(HALVED), "Halved has no grouped product, which experts need"),
        (moe(moe()), "an expert is itself a mixture of experts"),
    ],
)
def test_numbers_that_do_not_go_together_are_errors(cfg, what):
    with pytest.raises(ConfigError, match=what) as error:
        cfg.build()
    assert error.value.where


def test_any_module_is_an_expert_where_room_is_limited(call, perturbed, x):
    layer = moe(Normed.Config(), num_experts=1, top_k=1, dispatch=KINDS["roomy"]).build()
    state = perturbed(layer.init(0))
    dense = call(Normed.Config(dim=DIM).build(), one_of(state, 0), x)
    np.testing.assert_allclose(call(layer, state, x), dense, rtol=1e-5, atol=1e-6)


def test_a_feed_forward_is_replaced_from_outside_once():
    with_moe = lambda cfg: replace_config(  # noqa: E731
        cfg, FeedForward, lambda ffn: MoE.Config(expert=ffn, num_experts=4, top_k=2)
    )
    cfg = TransformerLayer.Config(dim=DIM, feed_forward=FeedForward.Config(hidden_dim=HIDDEN))
    assert with_moe(cfg).feed_forward.expert == cfg.feed_forward
    twice = with_moe(evolve(with_moe(cfg).feed_forward, dim=DIM))
    with pytest.raises(ConfigError, match="an expert is itself a mixture of experts"):
        twice.build()
