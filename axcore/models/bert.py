"""BERT: an encoder of text with learned positions and norms behind each branch."""

from typing import Any

import attrs
from immutabledict import immutabledict

from axcore.config import update_config
from axcore.interop import (
    ConfigEntry,
    Family,
    Field,
    Labels,
    MustBe,
    WeightMap,
    activation,
    below,
    both,
    linear,
    same,
)
from axcore.layers import (
    Embedding,
    LayerNorm,
    LearnedPosition,
    Linear,
    NoNorm,
    NormedEmbedding,
    PostNorm,
    ScannedLayers,
    TokenTypes,
    encoder_layer,
)
from axcore.models.causal_lm import Decoder, Sizes, of_size
from axcore.models.masked_lm import MaskedLM, TokenTransform
from axcore.models.text_classifier import LABELS, TextClassifier

_VOCABULARY = {"vocab_size": 30_522, "max_length": 512}

_SIZES: Sizes = {
    "tiny": {"dim": 128, "num_layers": 2, "num_heads": 2, **_VOCABULARY},
    "mini": {"dim": 256, "num_layers": 4, "num_heads": 4, **_VOCABULARY},
    "small": {"dim": 512, "num_layers": 4, "num_heads": 8, **_VOCABULARY},
    "medium": {"dim": 512, "num_layers": 8, "num_heads": 8, **_VOCABULARY},
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12, **_VOCABULARY},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16, **_VOCABULARY},
    "toy": {"dim": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 264, "max_length": 128},
}

_EPSILON = 1e-12


def bert(size: str) -> MaskedLM.Config:
    """Return the config of an uncased BERT: `tiny` to `medium`, `base`, `large` or `toy`.

    Its head predicts hidden tokens; whether one text follows another, it does not.

    Source: Devlin et al. 2018, arXiv:1810.04805, section 3; small ones: Turc et al. 2019,
    arXiv:1908.08962, table 1.
    """
    sizes = of_size("bert", _SIZES, size)
    layer = encoder_layer(num_heads=sizes["num_heads"], hidden_dim=4 * sizes["dim"])
    norm = LayerNorm.Config(epsilon=_EPSILON)
    embedding = LearnedPosition.Config(
        max_length=sizes["max_length"], embedding=TokenTypes.Config(embedding=Embedding.Config())
    )
    return MaskedLM.Config(
        vocab_size=sizes["vocab_size"],
        dim=sizes["dim"],
        encoder=Decoder.Config(
            embedding=NormedEmbedding.Config(embedding=embedding, norm=norm),
            stack=ScannedLayers.Config(
                num_layers=sizes["num_layers"],
                layer=update_config(layer, {"residual": PostNorm.Config(norm=norm)}),
            ),
            norm=NoNorm.Config(),
        ),
        transform=TokenTransform.Config(linear=Linear.Config(has_bias=True), norm=norm),
    )


def bert_classifier(size: str, *, num_classes: int) -> TextClassifier.Config:
    """Return the config of a BERT that classifies texts by their first token.

    Args:
        size: As of `bert`.
        num_classes: Number of logits.
    """
    cfg = bert(size)
    return TextClassifier.Config(
        num_classes=num_classes,
        vocab_size=cfg.vocab_size,
        dim=cfg.dim,
        encoder=cfg.encoder,
        transform=TokenTransform.Config(
            linear=Linear.Config(has_bias=True), activation="tanh", norm=NoNorm.Config()
        ),
    )


def _encoder_weights() -> WeightMap:
    layer = (
        *linear("attention.q", "attention.self.query"),
        *linear("attention.k", "attention.self.key"),
        *linear("attention.v", "attention.self.value"),
        *linear("attention.out", "attention.output.dense"),
        *both("attention_residual.norm", "attention.output.LayerNorm"),
        *linear("feed_forward.up", "intermediate.dense"),
        *linear("feed_forward.down", "output.dense"),
        *both("feed_forward_residual.norm", "output.LayerNorm"),
    )
    embedding, hf = "encoder.embedding.embedding", "bert.embeddings"
    return (
        same(f"{embedding}.embedding.embedding.weight", f"{hf}.word_embeddings.weight"),
        same(f"{embedding}.embedding.types", f"{hf}.token_type_embeddings.weight"),
        same(f"{embedding}.positions", f"{hf}.position_embeddings.weight"),
        *both("encoder.embedding.norm", f"{hf}.LayerNorm"),
        *below("encoder.stack.layer.{layer}", "bert.encoder.layer.{layer}", layer),
    )


def _weights(cfg: Any) -> WeightMap:
    return (
        *_encoder_weights(),
        *linear("transform.linear", "cls.predictions.transform.dense"),
        *both("transform.norm", "cls.predictions.transform.LayerNorm"),
        same("head.bias", "cls.predictions.bias"),
    )


_CLASSIFIER_WEIGHTS: WeightMap = (
    *_encoder_weights(),
    *linear("transform.linear", "bert.pooler.dense"),
    *linear("head", "classifier"),
)

_CONFIG: tuple[ConfigEntry, ...] = (
    Field("vocab_size", ("vocab_size",), default=30_522),
    Field("hidden_size", ("dim",), default=768),
    Field("num_hidden_layers", ("encoder.stack.num_layers",), default=12),
    Field("num_attention_heads", ("**.attention.num_heads",), default=12),
    Field("intermediate_size", ("**.hidden_dim",), default=3072),
    Field("max_position_embeddings", ("**.embedding.max_length",), default=512),
    Field("type_vocab_size", ("**.num_types",), default=2),
    Field("layer_norm_eps", ("**.norm.epsilon",), default=_EPSILON, to_axcore=float),
    MustBe("position_embedding_type", ("absolute",)),
    MustBe("tie_word_embeddings", (True,)),
    MustBe("is_decoder", (False,)),
    MustBe("add_cross_attention", (False,)),
)

BERT = Family(
    architecture="BertForMaskedLM",
    template=lambda: bert("toy"),
    config=(*_CONFIG, activation("hidden_act", "gelu")),
    weights=_weights,
    irrelevant=frozenset(
        {
            "attention_probs_dropout_prob",
            "classifier_dropout",
            "directionality",
            "gradient_checkpointing",
            "hidden_dropout_prob",
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        }
    ),
    # What the checkpoints have for the second task that they were trained on.
    skipped=(r"\.position_ids$", r"^bert\.pooler\.", r"^cls\.seq_relationship\."),
    copies=immutabledict(
        {
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        }
    ),
    renamed=((r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
)

BERT = attrs.evolve(
    BERT,
    classifier=attrs.evolve(
        BERT,
        architecture="BertForSequenceClassification",
        template=lambda: bert_classifier("toy", num_classes=2),
        config=(*_CONFIG, activation("hidden_act", "gelu", "**.feed_forward.activation"), Labels()),
        weights=lambda cfg: _CLASSIFIER_WEIGHTS,
        irrelevant=BERT.irrelevant | LABELS,
        copies={},
    ),
)
