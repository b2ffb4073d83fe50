"""What a report shows of a run's data: its first batch, and the shares of a mixture."""

import functools
from pathlib import Path
from typing import Any

from axcore.config import find_config
from axcore.data import Mixture
from axcore.report.packed_batch import packed_batch_content
from axcore.runs.run import Run
from axcore.trainer.run_directory.run_history import FIRST_BATCH_NAME, read_first_batch


def first_batch(folder: Path, trust_code: bool) -> dict[str, Any] | None:
    """Returns some rows of a run's first batch, as the picture of a packed batch has them.

    None where the run kept none: its batches are not of packed text, or it made no step.
    """
    path = folder / FIRST_BATCH_NAME
    if not path.exists():
        return None
    return dict(_read(folder, trust_code, path.stat().st_mtime_ns))


@functools.lru_cache(maxsize=64)
def _read(folder: Path, trust_code: bool, written: int) -> dict[str, Any]:
    rows = read_first_batch(folder)
    cfg: Any = Run(folder, trust_code=trust_code).opened_config
    tokenizer = cfg.data.build().tokenizer
    shown = len(rows["tokens"]) if rows else 0
    title = f"{shown} of {cfg.data.batch_size} rows of the first step"
    return packed_batch_content(rows, tokenizer, title=title) if rows else {}


def mixture_shares(cfg: Any) -> list[dict[str, Any]]:
    """Returns from which step on a config's sources have which shares; empty of one source."""
    mixtures = [one for _, one in find_config(cfg.data, Mixture.Config)]
    return [
        {"step": step, "over_steps": over, "shares": _shares(weights)}
        for one in mixtures[:1]
        for step, over, weights in (
            (0, 0, one.weights),
            *((new.from_step, new.over_steps, new.weights) for new in one.changes),
        )
    ]


def _shares(weights: Any) -> dict[str, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items() if weight}
