"""Mamba-2: state spaces in the place of attention, and no feed-forwards."""

from typing import Any

from axcore.config import replace_config, update_config
from axcore.layers import TransformerLayer
from axcore.models import TOY, CausalLM, Sizes, TiedHead, UntiedHead, of_size, transformer
from axl_attention.mamba2 import Mamba2
from axl_attention.mixer_layer import MixerLayer

_PILE = {"vocab_size": 50_288}
"""Of GPT-NeoX, filled to a multiple of 16."""

MAMBA2_SIZES: Sizes = {
    "130m": {"dim": 768, "num_layers": 24, "num_heads": 24, **_PILE},
    "370m": {"dim": 1024, "num_layers": 48, "num_heads": 32, **_PILE},
    "780m": {"dim": 1536, "num_layers": 48, "num_heads": 48, **_PILE},
    "1.3b": {"dim": 2048, "num_layers": 48, "num_heads": 64, **_PILE},
    "2.7b": {"dim": 2560, "num_layers": 64, "num_heads": 80, **_PILE},
    "codestral-7b": {
        "vocab_size": 32_768,
        "dim": 4096,
        "num_layers": 64,
        "num_heads": 128,
        "num_groups": 8,
    },
    "toy": {
        "vocab_size": TOY["vocab_size"],
        "dim": TOY["dim"],
        "num_layers": TOY["num_layers"],
        "num_heads": 8,
        "head_dim": 16,
        "num_groups": 2,
        "state_dim": 8,
        "chunk": 8,
    },
}


def mamba2(size: str) -> CausalLM.Config:
    """Return the config of a Mamba-2: `130m` to `2.7b`, `codestral-7b` or `toy`.

    Source: Dao and Gu 2024, arXiv:2405.21060, table 10; Codestral as in the config published with
    its weights.
    """
    sizes = dict(of_size("mamba2", MAMBA2_SIZES, size))
    vocab_size, dim, num_layers = (sizes.pop(name) for name in ("vocab_size", "dim", "num_layers"))
    cfg: Any = transformer(
        vocab_size=vocab_size, dim=dim, num_layers=num_layers, num_heads=1, hidden_dim=1
    )
    layer = MixerLayer.Config(mixer=Mamba2.Config(**sizes))
    cfg = replace_config(cfg, TransformerLayer, lambda _: layer)
    if size != "codestral-7b":
        cfg = replace_config(cfg, UntiedHead, TiedHead.Config())
    return update_config(cfg, {"**.norm.epsilon": 1e-5})
