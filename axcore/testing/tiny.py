"""A training config so small that a run takes a second or two, and a trainer on some devices."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from axcore.config import update_config
from axcore.data import TextFiles
from axcore.experiments.tiny import tiny

if TYPE_CHECKING:
    from axcore.trainer import Trainer


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


def trainer_on(cfg: Any, devices: int | Sequence[Any]) -> "Trainer":
    """Return the trainer of a config, resolved for these devices, or the first so many."""
    import jax

    from axcore.plugins import Hardware
    from axcore.trainer import Trainer, resolve

    chosen = jax.devices()[:devices] if isinstance(devices, int) else devices
    return Trainer(resolve(cfg, Hardware.detect(chosen)), devices=chosen)
