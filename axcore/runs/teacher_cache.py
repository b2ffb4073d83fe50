"""`write_teacher_cache`: a teacher's likeliest tokens at each place of training rows, in files."""

import json
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from axcore.data import Data
from axcore.data.packing.packing import PADDING_ROW
from axcore.data.teacher_cache import (
    MANIFEST,
    SPLITS,
    TEACHER_ARRAYS,
    array_path,
    check_cacheable,
    rows_identity,
)
from axcore.errors import ConfigError
from axcore.interop.tensor_files import new_folder
from axcore.layers import packed_rows
from axcore.models.causal_lm import LOGITS_AT_ONCE
from axcore.module import functional
from axcore.ops import use_policy
from axcore.progress import working
from axcore.runs.distill import check_same_tokens
from axcore.runs.opening import open_model

_BYTES = 8
"""Of a token and its log-probability."""


def write_teacher_cache(
    teacher: Path | str,
    data: Data.Config,
    folder: Path | str,
    *,
    top_k: int = 32,
    batch_size: int = 8,
) -> int:
    """Write a folder for `TaughtData`; return how many rows it has.

    It takes `8 * top_k` bytes for each token of a row, and is there only when all is written.

    Args:
        teacher: A run directory, or a folder that contains a pretrained checkpoint.
        data: The rows: both splits of them are written.
        folder: Where to write; it may not exist, or must be empty.
        top_k: How many tokens are kept at each place.
        batch_size: Rows that the teacher reads at once.

    Raises:
        ConfigError: The teacher has other tokens, or rows are packed again in each epoch.
        CheckpointError: The folder contains something, or the teacher cannot be read.
        DataError: The source cannot be read.
    """
    check_cacheable(data)
    opened: Any = open_model(teacher)
    check_same_tokens(data.tokenizer, opened.tokenizer.config, where=str(teacher))
    built = data.build()
    num_tokens = built.tokenizer.vocab_size
    if not 1 <= top_k <= num_tokens:
        raise ConfigError(
            f"top_k is {top_k}; expected 1 to {num_tokens}, the tokens that there are",
            where="--top-k",
            hint="--top-k 32",
        )
    digest, rows_of = blake2b(digest_size=16), {split: built.rows(split) for split in SPLITS}
    num_rows = sum(map(len, rows_of.values()))
    policy = use_policy(opened.trainer.compiler.kernel_policy)
    work_bytes = num_rows * data.seq_len * top_k * _BYTES
    with policy, working(f"writing {folder}", work_bytes) as work, new_folder(folder) as draft:
        for split, rows in rows_of.items():
            shape = (len(rows), data.seq_len, top_k)
            arrays = _new_arrays(draft, split, shape) if len(rows) else []
            for begin in range(0, len(rows), batch_size):
                count = min(batch_size, len(rows) - begin)
                numbers = [*range(begin, begin + count), *[PADDING_ROW] * (batch_size - count)]
                found = _likeliest(
                    opened.model, num_tokens, top_k, opened.state, rows.batch(numbers)
                )
                for array, values in zip(arrays, found, strict=True):
                    array[begin : begin + count] = kept = np.asarray(values)[:count]
                    digest.update(kept.tobytes())
                work.add(count * data.seq_len * top_k * _BYTES)
            for array in arrays:
                array.flush()
        manifest = {
            "teacher": str(Path(teacher).absolute()),
            "top_k": top_k,
            "digest": digest.hexdigest(),
            "rows": rows_identity(built),
        }
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return num_rows


def _new_arrays(folder: Path, split: str, shape: tuple[int, ...]) -> list[Any]:
    """Return files to write into, as arrays."""
    return [
        np.lib.format.open_memmap(
            array_path(folder, split, name), mode="w+", dtype=dtype, shape=shape
        )
        for name, dtype in TEACHER_ARRAYS.items()
    ]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _likeliest(model: Any, num_tokens: int, top_k: int, state: Any, batch: Any) -> tuple[Any, ...]:
    """Return the likeliest tokens after each of a batch, and their log-probabilities."""
    hidden, _ = functional(model, state, batch["tokens"], packed_rows(batch), method="hidden")
    parts = []
    for begin in range(0, hidden.shape[1], LOGITS_AT_ONCE):
        part = hidden[:, begin : begin + LOGITS_AT_ONCE]
        logits, _ = functional(model, state, part, method="logits_of")
        every = jax.nn.log_softmax(logits, axis=-1)
        # A teacher's table may be longer than its tokenizer's, and the student's may not.
        log_probs, tokens = jax.lax.top_k(every[..., :num_tokens], top_k)
        parts.append((tokens.astype(jnp.int32), log_probs))
    return tuple(jnp.concatenate(one, axis=1) for one in zip(*parts, strict=True))
