"""Language models in which the soft tokens of one input see each other, from and to plain ones."""

from typing import Any

from axcore.config import evolve, field_names, replace_config
from axcore.layers import DotProductAttention, SoftTokenEmbedding, WholeInputAttention, WholeInputs
from axcore.models.multimodal import MultimodalLM


def with_whole_inputs(cfg: MultimodalLM.Config) -> MultimodalLM.Config:
    """Return a model in which soft tokens also see those of their own input behind them.

    Args:
        cfg: Of a model whose attention is causal.
    """
    decoder: Any = replace_config(
        cfg.decoder, SoftTokenEmbedding, lambda old: WholeInputs.Config(embedding=old)
    )
    seeing = lambda old: WholeInputAttention.Config(**_fields(old))  # noqa: E731
    return evolve(cfg, decoder=replace_config(decoder, DotProductAttention, seeing))


def without_whole_inputs(cfg: MultimodalLM.Config) -> MultimodalLM.Config:
    """Return the model that `with_whole_inputs` was called with."""
    decoder: Any = replace_config(
        cfg.decoder, WholeInputs, lambda old: old.embedding, missing_ok=True
    )
    causal = lambda old: DotProductAttention.Config(**_fields(old))  # noqa: E731
    return evolve(
        cfg, decoder=replace_config(decoder, WholeInputAttention, causal, missing_ok=True)
    )


def _fields(core: Any) -> dict[str, Any]:
    """Return the fields of a core that its parent does not fill."""
    return {name: getattr(core, name) for name in field_names(core) if name != "num_heads"}
