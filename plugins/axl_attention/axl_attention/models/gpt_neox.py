"""GPT-NeoX and Pythia: attention beside the feed-forward, and positions for a quarter of a head."""

from axcore.config import replace_config, update_config
from axcore.layers import FeedForward, LayerNorm, PlainFeedForward, RMSNorm, RoPE, TransformerLayer
from axcore.models import TOY, CausalLM, Sizes, of_size, transformer
from axl_attention.parallel_layer import in_place_of as with_parallel_layer
from axl_attention.partial_rotary import PartialRotary


def _size(vocab_size: int, dim: int, num_layers: int, num_heads: int) -> dict[str, int]:
    return {
        "vocab_size": vocab_size,
        "dim": dim,
        "num_layers": num_layers,
        "num_heads": num_heads,
        "hidden_dim": 4 * dim,
    }


GPT_NEOX_SIZES: Sizes = {
    "pythia-70m": _size(50_304, 512, 6, 8),
    "pythia-160m": _size(50_304, 768, 12, 12),
    "pythia-410m": _size(50_304, 1024, 24, 16),
    "pythia-1b": _size(50_304, 2048, 16, 8),
    "pythia-1.4b": _size(50_304, 2048, 24, 16),
    "pythia-2.8b": _size(50_304, 2560, 32, 32),
    "pythia-6.9b": _size(50_432, 4096, 32, 32),
    "pythia-12b": _size(50_688, 5120, 36, 40),
    "20b": _size(50_432, 6144, 44, 64),
    "toy": {**TOY, "num_kv_heads": None},
}


def gpt_neox(size: str) -> CausalLM.Config:
    """Return the config of GPT-NeoX (`20b`), of a Pythia (`pythia-70m` to `pythia-12b`) or `toy`.

    Source: Black et al. 2022, arXiv:2204.06745, section 2; Biderman et al. 2023, arXiv:2304.01373,
    table 1.
    """
    cfg = transformer(**of_size("gpt_neox", GPT_NEOX_SIZES, size))
    gelu = "gelu_tanh" if size == "20b" else "gelu"
    for part, new in (
        (RMSNorm, LayerNorm.Config()),
        (FeedForward, PlainFeedForward.Config(activation=gelu)),
        (RoPE, lambda old: PartialRotary.Config(fraction=0.25, inner=old)),
        (TransformerLayer, with_parallel_layer),
    ):
        cfg = replace_config(cfg, part, new)
    return update_config(cfg, {"**.linear.has_bias": True, "**.out_linear.has_bias": True})
