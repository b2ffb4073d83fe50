"""T5, which reads a text and writes another one: its first version, and 1.1."""

from typing import Any, ClassVar

from immutabledict import immutabledict

from axcore.config import replace_config, update_config
from axcore.errors import ConfigError
from axcore.interop import (
    ACTIVATIONS,
    ConfigEntry,
    Derived,
    Family,
    Field,
    Fields,
    MustBe,
    WeightMap,
    below,
    common_value,
    linear,
    same,
)
from axcore.layers import (
    Attention,
    BiasedAttention,
    CrossAttention,
    CrossTransformerLayer,
    DotProductAttention,
    Embedding,
    FeedForward,
    Linear,
    PlainFeedForward,
    RelativeBias,
    ScannedLayers,
    TransformerLayer,
)
from axcore.models.causal_lm import Sizes, UntiedHead, of_size
from axcore.models.seq2seq_lm import ScaledTiedHead, Seq2SeqLM, TransformerStack
from axcore.module import Normal, VarianceScaling

_SIZES: Sizes = {
    "small": {"dim": 512, "num_layers": 6, "num_heads": 8, "head_dim": 64, "hidden_dim": 2048},
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "head_dim": 64, "hidden_dim": 3072},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16, "head_dim": 64, "hidden_dim": 4096},
    "3b": {"dim": 1024, "num_layers": 24, "num_heads": 32, "head_dim": 128, "hidden_dim": 16_384},
    "11b": {"dim": 1024, "num_layers": 24, "num_heads": 128, "head_dim": 128, "hidden_dim": 65_536},
    "toy": {"dim": 32, "num_layers": 2, "num_heads": 4, "head_dim": 12, "hidden_dim": 48},
}

_SIZES_1_1: Sizes = {
    "small": {"dim": 512, "num_layers": 8, "num_heads": 6, "head_dim": 64, "hidden_dim": 1024},
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, "head_dim": 64, "hidden_dim": 2048},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16, "head_dim": 64, "hidden_dim": 2816},
    "xl": {"dim": 2048, "num_layers": 24, "num_heads": 32, "head_dim": 64, "hidden_dim": 5120},
    "xxl": {"dim": 4096, "num_layers": 24, "num_heads": 64, "head_dim": 64, "hidden_dim": 10_240},
    "toy": _SIZES["toy"],
}


_HEADS = ("**.attention.num_heads", "**.cross_attention.num_heads", "**.bias.num_heads")
_HEAD_DIMS = ("**.attention.head_dim", "**.cross_attention.head_dim")


def t5(size: str) -> Seq2SeqLM.Config:
    """Return the config of a T5: `small`, `base`, `large`, `3b`, `11b` or `toy`.

    Source: Raffel et al. 2019, arXiv:1910.10683, sections 2.1 and 3.7.
    """
    sizes = of_size("t5", _SIZES, size)
    num_heads, head_dim = sizes["num_heads"], sizes["head_dim"]
    # Products are not scaled, so that keys begin smaller instead.
    key_linear = Linear.Config(weight_init=VarianceScaling(scale=1 / head_dim))
    both_ways, causal = (
        Attention.Config(
            num_heads=num_heads,
            head_dim=head_dim,
            key_linear=key_linear,
            core=BiasedAttention.Config(
                core=DotProductAttention.Config(is_causal=is_causal, scale=1.0)
            ),
        )
        for is_causal in (False, True)
    )
    feed_forward = PlainFeedForward.Config(hidden_dim=sizes["hidden_dim"], activation="relu")
    layer = TransformerLayer.Config(attention=both_ways, feed_forward=feed_forward)
    cross_layer = CrossTransformerLayer.Config(
        attention=causal,
        cross_attention=CrossAttention.Config(
            num_heads=num_heads, head_dim=head_dim, key_linear=key_linear, scale=1.0
        ),
        feed_forward=feed_forward,
    )
    encoder, decoder = (
        TransformerStack.Config(
            stack=ScannedLayers.Config(num_layers=sizes["num_layers"], layer=one),
            bias=RelativeBias.Config(num_heads=num_heads, is_bidirectional=one is layer),
        )
        for one in (layer, cross_layer)
    )
    return Seq2SeqLM.Config(
        vocab_size=264 if size == "toy" else 32_128,
        dim=sizes["dim"],
        embedding=Embedding.Config(weight_init=Normal(std=1.0)),
        encoder=encoder,
        decoder=decoder,
        head=ScaledTiedHead.Config(),
    )


def t5_v1_1(size: str) -> Seq2SeqLM.Config:
    """Return the config of a T5 1.1: `small`, `base`, `large`, `xl`, `xxl` or `toy`.

    Its feed-forwards have gates, and its head is not the embedding.

    Source: Shazeer 2020, arXiv:2002.05202, section 3.1; sizes as in the configs published with the
    weights.
    """
    sizes = of_size("t5_v1_1", _SIZES_1_1, size)
    cfg = update_config(
        t5("toy" if size == "toy" else "small"),
        {
            "dim": sizes["dim"],
            "**.num_layers": sizes["num_layers"],
            "**.hidden_dim": sizes["hidden_dim"],
            **dict.fromkeys(_HEADS, sizes["num_heads"]),
            **dict.fromkeys(_HEAD_DIMS, sizes["head_dim"]),
        },
    )
    cfg = replace_config(cfg, PlainFeedForward, FeedForward.Config(activation="gelu_tanh"))
    return update_config(cfg, {"head": UntiedHead.Config()})


class _FeedForwards(ConfigEntry):
    """`feed_forward_proj`: an activation, with `gated-` before it where there is a gate."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with such feed-forwards.

        Raises:
            ConfigError: It names no activation.
        """
        said = fields.take("feed_forward_proj", "relu")
        # What `gated-gelu` was from the beginning, as published.
        name = "gated-gelu_new" if said == "gated-gelu" else said
        kind: Any = FeedForward if name.startswith("gated-") else PlainFeedForward
        activation = ACTIVATIONS.get(name.removeprefix("gated-"))
        if activation is None:
            raise ConfigError(
                f"config.json has feed_forward_proj={said!r}",
                where="feed_forward_proj",
                hint=f"write one of {', '.join(ACTIVATIONS)}, or gated- and one of them",
            )
        hidden_dim = fields.take("d_ff", 2048)
        new = kind.Config(hidden_dim=hidden_dim, activation=activation)
        return update_config(cfg, {"**.feed_forward": new})

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the field, and the number of hidden units."""
        name, has_gate = _activation_name(cfg)
        if has_gate:
            name = "gated-gelu" if name == "gelu_new" else f"gated-{name}"
        hidden_dim = common_value(cfg, "**.feed_forward.hidden_dim")
        return {"feed_forward_proj": name, "d_ff": hidden_dim}


def _activation_name(cfg: Any) -> tuple[str, bool]:
    """Return the activation of feed-forwards, and whether they have a gate."""
    name = common_value(cfg, "**.feed_forward.activation")
    names = {own: hf for hf, own in ACTIVATIONS.items()} | {"gelu_tanh": "gelu_new"}
    return names[name], isinstance(common_value(cfg, "**.feed_forward"), FeedForward.Config)


class _HeadFields(ConfigEntry):
    """`tie_word_embeddings`, and `scale_decoder_outputs`, which newer files have for it.

    These say that embeddings are tied in any case; whether they are shows in the weights.
    """

    _HEADS: ClassVar[dict[bool, Any]] = {
        True: ScaledTiedHead.Config(),
        False: UntiedHead.Config(),
    }

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with the head."""
        is_tied = fields.take("tie_word_embeddings", True)
        is_scaled = fields.take("scale_decoder_outputs", is_tied)
        head = self._HEADS[is_tied and is_scaled]
        return replace_config(cfg, lambda _: True, head, at="head")

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return the older field."""
        for is_tied, head in self._HEADS.items():
            if type(cfg.head) is type(head):
                return {"tie_word_embeddings": is_tied}
        raise ConfigError(f"the head is a {type(cfg.head).__qualname__}", where="head")


class _Layers(ConfigEntry):
    """The numbers of layers; where the decoder's is left out, it is the encoder's."""

    def read(self, cfg: Any, fields: Fields) -> Any:
        """Return a config with so many layers."""
        number = fields.take("num_layers", 6)
        of_decoder = fields.take("num_decoder_layers", None) or number
        stacks = {"encoder.stack.num_layers": number, "decoder.stack.num_layers": of_decoder}
        return update_config(cfg, stacks)

    def write(self, cfg: Any) -> dict[str, Any]:
        """Return both fields."""
        numbers = cfg.encoder.stack.num_layers, cfg.decoder.stack.num_layers
        return dict(zip(("num_layers", "num_decoder_layers"), numbers, strict=True))


def _attention(axcore: str, hf: str) -> WeightMap:
    names = {"q": "q", "k": "k", "v": "v", "out": "o"}
    return tuple(
        rule for own, name in names.items() for rule in linear(f"{axcore}.{own}", f"{hf}.{name}")
    )


def _weights(cfg: Any) -> WeightMap:
    has_gate = isinstance(common_value(cfg, "**.feed_forward"), FeedForward.Config)
    up = "wi_1" if has_gate else "wi"
    return (
        same("embedding.weight", "shared.weight"),
        *_stack_weights("encoder", 1, up),
        *_stack_weights("decoder", 2, up),
        same("head.weight", "lm_head.weight"),
    )


def _stack_weights(part: str, number: int, up: str) -> WeightMap:
    """Return the rules of a stack.

    Args:
        part: Its name on both sides.
        number: Of the feed-forward among a layer's branches.
        up: The projection that has no activation where there is a gate.
    """
    attention, cross, feed_forward = "layer.0", "layer.1", f"layer.{number}"
    dense = f"{feed_forward}.DenseReluDense"
    layer = (
        *_attention("attention", f"{attention}.SelfAttention"),
        same("attention_residual.norm.weight", f"{attention}.layer_norm.weight"),
        *_attention("cross_attention", f"{cross}.EncDecAttention"),
        same("cross_residual.norm.weight", f"{cross}.layer_norm.weight"),
        *linear("feed_forward.gate", f"{dense}.wi_0"),
        *linear("feed_forward.up", f"{dense}.{up}"),
        *linear("feed_forward.down", f"{dense}.wo"),
        same("feed_forward_residual.norm.weight", f"{feed_forward}.layer_norm.weight"),
    )
    bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    return (
        *below(f"{part}.stack.layer.{{layer}}", f"{part}.block.{{layer}}", layer),
        same(f"{part}.bias.weight", f"{part}.{bias}"),
        same(f"{part}.norm.weight", f"{part}.final_layer_norm.weight"),
    )


T5 = Family(
    architecture="T5ForConditionalGeneration",
    template=lambda: t5("toy"),
    config=(
        Field("vocab_size", ("vocab_size",), default=32_128),
        Field("d_model", ("dim",), default=512),
        Field("d_kv", _HEAD_DIMS, default=64),
        Field("num_heads", _HEADS, default=8),
        _Layers(),
        _FeedForwards(),
        Field("relative_attention_num_buckets", ("**.bias.num_buckets",), default=32),
        Field("relative_attention_max_distance", ("**.bias.max_distance",), default=128),
        Field("layer_norm_epsilon", ("**.norm.epsilon",), default=1e-6, to_axcore=float),
        Field("decoder_start_token_id", ("start_token",), default=0),
        Derived("dense_act_fn", lambda cfg: _activation_name(cfg)[0], is_written=False),
        Derived("is_gated_act", lambda cfg: _activation_name(cfg)[1], is_written=False),
        _HeadFields(),
        MustBe("is_encoder_decoder", (True,)),
    ),
    weights=_weights,
    irrelevant=frozenset(
        {"classifier_dropout", "dropout_rate", "initializer_factor", "n_positions", "output_past"}
    ),
    skipped=(r"^decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",),
    copies=immutabledict(
        {
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
            "lm_head.weight": "shared.weight",
        }
    ),
    length="n_positions",
)
