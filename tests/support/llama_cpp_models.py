"""What llama.cpp computes with files that axcore writes. `make parity-gguf` has its library."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_models import MAX_LENGTH
from parity_pairs import MODELS

from axcore.config import replace_config, update_config
from axcore.layers import RoPE
from axcore.models import llama2, mistral, qwen2

CLOSE, CLOSE_GELU = 1e-5, 2e-3
"""Of logits of about 4; llama.cpp's table of GELU is in half precision."""
GEMMAS = ("gemma", "gemma2", "gemma3")
_FLOAT32 = 0
"""llama.cpp's number of the type, here of its cache."""


def _yarn(make_model: Any) -> Any:
    from axl_attention.rope_scaling import YaRN

    scaled = YaRN.Config(theta=1e4, factor=4.0, original_length=8, attention_factor=1.7)
    return replace_config(make_model("toy"), RoPE, scaled)


_MORE = {
    "llama-yarn": lambda: _yarn(llama2),
    "qwen2-yarn-amplified": lambda: _yarn(qwen2),
    "mistral-wide": lambda: update_config(mistral("toy"), {"**.attention.head_dim": 24}),
}
_SAME = ("llama", "llama-3.1", "llama-3.2", "llama-linear", "llama-biased", "mixtral")
_SAME += ("qwen2", "qwen2-tied", "qwen2-yarn", "qwen3", "qwen3_moe")
COMPUTED = (*_SAME, *_MORE, *GEMMAS)
"""Models that are compared, by name."""


def make(name: str) -> Any:
    """Returns the config of a model."""
    return {**MODELS, **_MORE}[name]()


def load(path: Path) -> Any:
    llama_cpp = pytest.importorskip("llama_cpp", reason="run make parity-gguf")
    return llama_cpp.Llama(
        str(path),
        n_ctx=MAX_LENGTH,
        logits_all=True,
        verbose=False,
        type_k=_FLOAT32,
        type_v=_FLOAT32,
        flash_attn=False,
        n_threads=1,
    )


def their_logits(model: Any, tokens: list[int]) -> np.ndarray:
    model.reset()
    model.eval(tokens)
    return np.array(model.scores[: len(tokens)])
