"""A training config so small that a run of it takes a second or two, compilation included."""

from pathlib import Path
from typing import Any

from axcore.config import update_config
from axcore.data import TextFiles
from axcore.experiments.tiny import tiny

_LINE = "The {} dog jumps over the lazy fox, and nobody minds.\n"


def small_experiment(folder: Path) -> Any:
    """Return the experiment `tiny` with a smaller model, and text of its own.

    Args:
        folder: Where the text is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(40):
        (folder / f"{number:02}.txt").write_text(_LINE.format(number) * 4, encoding="utf-8")
    return update_config(
        tiny(),
        {
            "model.dim": 32,
            "**.num_layers": 2,
            "**.hidden_dim": 64,
            "**.num_heads": 2,
            "**.num_kv_heads": 1,
            "data.source": TextFiles.Config(folder=str(folder)),
            "data.seq_len": 32,
            "data.batch_size": 16,
            "data.validation_batches": 1,
            "**.warmup_steps": 1,
            "max_steps": 2,
            "logging.every_steps": 1,
        },
    )
