"""`trainer_on`: a trainer on some of the devices at hand."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from axcore.trainer import Trainer


def trainer_on(cfg: Any, devices: int | Sequence[Any]) -> "Trainer":
    """Return the trainer of a config, resolved for these devices, or the first so many."""
    import jax

    from axcore.plugins import Hardware
    from axcore.trainer import Trainer, resolve

    chosen = jax.devices()[:devices] if isinstance(devices, int) else devices
    return Trainer(resolve(cfg, Hardware.detect(chosen)), devices=chosen)
