"""Runs as files for llama.cpp."""

from pathlib import Path
from typing import Any

from axcore.data import gguf_vocabulary
from axcore.errors import ConfigError
from axcore.interop import GGUFType, adapter_format, to_gguf
from axcore.runs.hugging_face import merged_model
from axcore.runs.run import Run


def export_gguf(
    run: Run, path: Path | str, *, dtype: GGUFType | None = None, merged: bool = False
) -> str:
    """Writes the model of a run and its tokenizer as one GGUF file; returns what it has written.

    Args:
        run: The run.
        path: Where to write; it may not exist.
        dtype: Of matrices; each array's own by default.
        merged: Whether adapters are added to the weights.

    Raises:
        ConfigError: llama.cpp has no such model or no such tokenizer; or adapters are to be merged
            and there are none, or there are some and they are not to be.
        CheckpointError: The run has no checkpoint, or the file exists.
    """
    cfg: Any = run.trainer.config.model
    if not merged and adapter_format(cfg) is not None:
        raise ConfigError(
            "the run trains adapters, and a GGUF file holds a whole model", hint="--merged"
        )
    tokenizer = getattr(run.trainer.data, "tokenizer", None)
    vocabulary, note = gguf_vocabulary(tokenizer, cfg.vocab_size)
    length = getattr(run.config.data, "seq_len", None)
    if length is None:
        raise ConfigError("a GGUF file says how long rows are; the run's data has no seq_len")
    state = run.state
    if merged:
        cfg, state = merged_model(cfg, state)
    kind = to_gguf(path, cfg, state, vocabulary=vocabulary, max_length=length, dtype=dtype)
    return f"a model of type {kind} for llama.cpp" + (f"; {note}" if note else "")
