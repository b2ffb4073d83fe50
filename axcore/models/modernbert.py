"""ModernBERT: an encoder of text with rotary positions, most of whose layers see a window."""

from typing import Any, cast

import attrs
from immutabledict import immutabledict

from axcore.config import config, evolve
from axcore.errors import ConfigError
from axcore.interop import (
    Chain,
    Choice,
    Concatenate,
    Family,
    Field,
    Fields,
    Labels,
    LayerKinds,
    MustBe,
    RopeFields,
    Rule,
    Transpose,
    WeightMap,
    activation,
    arranged,
    below,
    common_value,
    linear,
    same,
)
from axcore.layers import (
    Attention,
    DotProductAttention,
    Embedding,
    FeedForward,
    FirstToken,
    LayerNorm,
    MeanPool,
    NoNorm,
    NormedEmbedding,
    PreNorm,
    RoPE,
    Sequence,
    TransformerLayer,
)
from axcore.models.causal_lm import Decoder, Sizes, of_size
from axcore.models.masked_lm import MaskedLM, TokenTransform
from axcore.models.text_classifier import LABELS, TextClassifier

_SIZES: Sizes = {
    "base": {"dim": 768, "num_layers": 22, "num_heads": 12, "hidden_dim": 1152},
    "large": {"dim": 1024, "num_layers": 28, "num_heads": 16, "hidden_dim": 2624},
    "toy": {"dim": 64, "num_layers": 4, "num_heads": 4, "hidden_dim": 96},
}

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"
_FIRST = "full_attention, without a norm before it"
_PERIOD = 3
_LOCAL_THETA, _GLOBAL_THETA = 10_000.0, 160_000.0


def modernbert(size: str) -> MaskedLM.Config:
    """Return the config of a ModernBERT: `base`, `large` or `toy`.

    Every third layer sees all tokens, the others 64 on each side.

    Source: Warner et al. 2024, arXiv:2412.13663, section 2.1 and table 4.
    """
    sizes = of_size("modernbert", _SIZES, size)
    is_toy = size == "toy"
    norm = LayerNorm.Config(epsilon=1e-5, has_bias=False)
    window = (4, 4) if is_toy else (64, 64)
    local, whole = (
        TransformerLayer.Config(
            attention=Attention.Config(
                num_heads=sizes["num_heads"],
                position=RoPE.Config(theta=theta),
                core=DotProductAttention.Config(is_causal=False, window=seen),
            ),
            feed_forward=FeedForward.Config(hidden_dim=sizes["hidden_dim"], activation="gelu"),
            residual=PreNorm.Config(norm=norm),
        )
        for theta, seen in ((_LOCAL_THETA, window), (_GLOBAL_THETA, None))
    )
    later = [local if i % _PERIOD else whole for i in range(1, sizes["num_layers"])]
    return MaskedLM.Config(
        vocab_size=264 if is_toy else 50_368,
        dim=sizes["dim"],
        encoder=Decoder.Config(
            embedding=NormedEmbedding.Config(embedding=Embedding.Config(), norm=norm),
            stack=_stack([whole, *later]),
            norm=norm,
        ),
        transform=TokenTransform.Config(norm=norm),
    )


def modernbert_classifier(size: str, *, num_classes: int) -> TextClassifier.Config:
    """Return the config of a ModernBERT that classifies texts by the mean of their tokens.

    Args:
        size: As of `modernbert`.
        num_classes: Number of logits.
    """
    cfg: Any = modernbert(size)
    return TextClassifier.Config(
        num_classes=num_classes,
        vocab_size=cfg.vocab_size,
        dim=cfg.dim,
        encoder=cfg.encoder,
        pool=MeanPool.Config(),
        transform=cfg.transform,
    )


class LayerOfNormed(TransformerLayer):
    """A layer whose attention reads its input as it is: what is before it has a norm.

    Its parts are those of a `TransformerLayer`. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(TransformerLayer.Config):
        """Has the fields of its base; `residual` is a `PreNorm`."""

    def setup(self, cfg: TransformerLayer.Config) -> None:
        """Build the two branches and their residual connections."""
        before: Any = evolve(cast(Any, cfg.residual), norm=NoNorm.Config())
        self.attention = cfg.attention.build(dim=cfg.dim)
        self.feed_forward = cfg.feed_forward.build(dim=cfg.dim)
        self.attention_residual = before.build(dim=cfg.dim)
        self.feed_forward_residual = cfg.residual.build(dim=cfg.dim)


def _first(layer: Any) -> LayerOfNormed.Config:
    """Return the first layer of a stack with another layer's parts."""
    return LayerOfNormed.Config(
        attention=layer.attention, feed_forward=layer.feed_forward, residual=layer.residual
    )


def _stack(layers: list[Any]) -> Any:
    """Return a stack whose first layer has no norm before attention, as the embedding has one."""
    first = _first(layers[0])
    # Behind the first, layers take turns: compiled as one scan, they are two bodies.
    return Sequence.Config(layers=(first, arranged(layers[1:])))


def _kind_of(layer: Any) -> int:
    if isinstance(layer, LayerOfNormed.Config):
        return 0
    return 1 if layer.attention.core.window else 2


@attrs.frozen
class _Layers(LayerKinds):
    """`layer_types`, and the period by which older files say the same."""

    def read(self, fields: Fields, num_layers: int) -> list[int]:
        """Return the kind of each layer.

        Raises:
            ConfigError: The two disagree, or the first layer sees a window.
        """
        period = fields.take("global_attn_every_n_layers", None)
        implied = [_GLOBAL if i % (period or _PERIOD) == 0 else _LOCAL for i in range(num_layers)]
        named = fields.take("layer_types", None) or implied
        disagrees = period is not None and named != implied
        if disagrees or len(named) != num_layers or {*named} - {_LOCAL, _GLOBAL}:
            raise ConfigError(
                f"layer_types is {named}, and global_attn_every_n_layers {period}; there are "
                f"{num_layers} layers",
                where="layer_types",
                hint=f"name {_LOCAL} or {_GLOBAL} for each layer, and leave the other field out",
            )
        if named[0] != _GLOBAL:
            raise ConfigError(f"the first layer is of {named[0]}", where="layer_types")
        return [0, *(2 if name == _GLOBAL else 1 for name in named[1:])]

    def write(self, kinds: list[int]) -> dict[str, Any]:
        """Return `layer_types`, and the period where there is one, for older readers."""
        named = [_LOCAL if kind == 1 else _GLOBAL for kind in kinds]
        periods = (n for n in range(1, len(named) + 1) if named == _in_turn(n, len(named)))
        period = next(periods, None)
        fields = {} if period is None else {"global_attn_every_n_layers": period}
        return {"layer_types": named, **fields}

    def stack(self, layers: list[Any]) -> Any:
        """Return the stack that `modernbert` has."""
        return _stack(layers)


def _in_turn(period: int, num_layers: int) -> list[str]:
    return [_LOCAL if i % period else _GLOBAL for i in range(num_layers)]


def _shared_weights(cfg: Any) -> WeightMap:
    hidden_dim = common_value(cfg, "**.feed_forward.hidden_dim")
    layer = (
        same("attention_residual.norm.weight", "attn_norm.weight"),
        *_fused(("attention.q", "attention.k", "attention.v"), "attn.Wqkv", cfg.dim),
        *linear("attention.out", "attn.Wo"),
        same("feed_forward_residual.norm.weight", "mlp_norm.weight"),
        *_fused(("feed_forward.gate", "feed_forward.up"), "mlp.Wi", hidden_dim),
        *linear("feed_forward.down", "mlp.Wo"),
    )
    return (
        same("encoder.embedding.embedding.weight", "model.embeddings.tok_embeddings.weight"),
        same("encoder.embedding.norm.weight", "model.embeddings.norm.weight"),
        *below("encoder.stack.layer.{layer}", "model.layers.{layer}", layer),
        same("encoder.norm.weight", "model.final_norm.weight"),
        *linear("transform.linear", "head.dense"),
        same("transform.norm.weight", "head.norm.weight"),
    )


def _weights(cfg: Any) -> WeightMap:
    return (*_shared_weights(cfg), same("head.bias", "decoder.bias"))


def _fused(axcore: tuple[str, ...], hf: str, size: int) -> WeightMap:
    """Return the rules of linear layers that are one in Hugging Face's."""
    fused = Concatenate((size,) * len(axcore), axis=-1)
    weights, biases = (tuple(f"{one}.{name}" for one in axcore) for name in ("weight", "bias"))
    return (
        Rule(weights, (f"{hf}.weight",), Chain(fused, Transpose())),
        Rule(biases, (f"{hf}.bias",), fused),
    )


def _halved(window: int) -> tuple[int, int]:
    return (window // 2, window // 2)


def _classifier_weights(cfg: Any) -> WeightMap:
    return (*_shared_weights(cfg), *linear("head", "classifier"))


_FOLDED = "encoder.stack.layers[{}]"

MODERNBERT = Family(
    architecture="ModernBertForMaskedLM",
    template=lambda: modernbert("toy"),
    layers=_Layers((_FIRST, _LOCAL, _GLOBAL), _kind_of, path="encoder.stack"),
    config=(
        Field("vocab_size", ("vocab_size",), default=50_368),
        Field("hidden_size", ("dim",), default=768),
        Field("num_attention_heads", ("**.attention.num_heads",), default=12),
        Field("intermediate_size", ("**.hidden_dim",), default=1152),
        Field("norm_eps", ("**.norm.epsilon",), default=1e-5, to_axcore=float),
        activation("hidden_activation", "gelu"),
        Field(
            "attention_bias",
            ("**.attention.linear.has_bias", "**.attention.out_linear.has_bias"),
            default=False,
        ),
        Field("mlp_bias", ("**.feed_forward.linear.has_bias",), default=False),
        Field(
            "local_attention",
            (f"{_FOLDED.format(1)}.attention.core.window",),
            default=128,
            to_axcore=_halved,
            to_hf=lambda window: 2 * window[0],
        ),
        *(
            RopeFields(
                f"{_FOLDED.format(number)}.attention.position",
                theta,
                name=f"{name}_rope_theta",
                layer_type=layer_type,
            )
            for number, theta, name, layer_type in (
                (0, _GLOBAL_THETA, "global", _GLOBAL),
                (1, _LOCAL_THETA, "local", _LOCAL),
                (2, _GLOBAL_THETA, "global", _GLOBAL),
            )
        ),
        MustBe("classifier_activation", ("gelu",)),
        MustBe("decoder_bias", (True,)),
        MustBe("norm_bias", (False,)),
        MustBe("classifier_bias", (False,)),
        MustBe("tie_word_embeddings", (True,)),
        MustBe("position_embedding_type", ("absolute",), is_written=False),
    ),
    weights=_weights,
    irrelevant=frozenset(
        {
            "classifier_dropout",
            "classifier_pooling",
            "cls_token_id",
            "deterministic_flash_attn",
            "embedding_dropout",
            "gradient_checkpointing",
            "initializer_cutoff_factor",
            "layer_norm_eps",  # of no layer: they have norm_eps
            "mlp_dropout",
            "reference_compile",
            "repad_logits_with_grad",
            "sparse_pred_ignore_index",
            "sparse_prediction",
        }
    ),
    copies=immutabledict({"decoder.weight": "model.embeddings.tok_embeddings.weight"}),
)

MODERNBERT = attrs.evolve(
    MODERNBERT,
    classifier=attrs.evolve(
        MODERNBERT,
        architecture="ModernBertForSequenceClassification",
        template=lambda: modernbert_classifier("toy", num_classes=2),
        config=(
            *MODERNBERT.config,
            Choice(
                "classifier_pooling",
                "pool",
                {"cls": FirstToken.Config(), "mean": MeanPool.Config()},
                "cls",
            ),
            Labels(),
        ),
        weights=_classifier_weights,
        irrelevant=MODERNBERT.irrelevant | LABELS,
        copies={},
    ),
)
