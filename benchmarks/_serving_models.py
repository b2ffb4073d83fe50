"""Writes a model of random weights for all rivals of `serving.py`.

    python benchmarks/_serving_models.py NAME FOLDER

`FOLDER/NAME` is in the format of Hugging Face, `FOLDER/NAME.gguf` is llama.cpp's: the same numbers.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _serving_load import CONTEXT, MODELS

import axcore as ax
from axcore.data import ByteTokenizer, gguf_vocabulary
from axcore.interop import to_gguf
from axcore.models import transformer
from axcore.module import ParamSpec


def main(name: str, folder: str) -> None:
    cfg = transformer(**MODELS[name])
    draw = np.random.default_rng(0)

    def drawn(spec: ParamSpec) -> Any:
        numbers = draw.standard_normal(spec.shape, dtype=np.float32)
        return jnp.asarray(1 + 0.1 * numbers if "norm" in spec.axes else 0.05 * numbers)

    state = jax.tree.map(
        drawn, cfg.build().param_specs(), is_leaf=lambda leaf: isinstance(leaf, ParamSpec)
    )
    print(sum(leaf.size for leaf in jax.tree.leaves(state)))
    ax.to_hugging_face(Path(folder) / name, cfg, state, max_length=CONTEXT)
    vocabulary, _ = gguf_vocabulary(ByteTokenizer.Config().build(), cfg.vocab_size)
    path = Path(folder) / f"{name}.gguf"
    to_gguf(path, cfg, state, vocabulary=vocabulary, max_length=CONTEXT)


if __name__ == "__main__":
    main(*sys.argv[1:])
