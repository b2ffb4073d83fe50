"""Recognising Trainium: by its driver before JAX starts, by its devices' kinds after that."""

from collections.abc import Mapping
from pathlib import Path

_DRIVER = Path("/dev/neuron0")

_PREFIXES = {"NC_v2": "trn1", "NC_v3": "trn2"}


def detect(platform: str, device_kind: str) -> str | None:
    """Return the generation of a Neuron device, or None for one that is not described.

    Kinds are names of the core's version, with a letter after it where cores are joined. Not yet
    tried on a device.
    """
    if platform != "neuron":
        return None
    return next(
        (name for prefix, name in _PREFIXES.items() if device_kind.startswith(prefix)), None
    )


def present(environment: Mapping[str, str], driver: Path = _DRIVER) -> bool:
    """Whether the driver shows a chip here, and JAX is not kept from using it."""
    wanted = environment.get("JAX_PLATFORMS", "")
    return (not wanted or "neuron" in wanted.split(",")) and driver.exists()
