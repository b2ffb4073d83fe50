"""Recognising TPUs: by their PCI functions before JAX starts, by their devices' kinds after."""

from collections.abc import Mapping
from pathlib import Path

_PCI = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"
_TPUS = {"0x005e", "0x0062", "0x0063", "0x006f", "0x0076"}
"""PCI device ids of v4, v5p, v5e, v6e and 7x, as in `jax._src.hardware_utils` of JAX 0.10."""

_GENERATIONS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "7x",
}


def detect(platform: str, device_kind: str) -> str | None:
    """Returns the generation of a TPU device, or None for one that is not described."""
    return _GENERATIONS.get(device_kind) if platform == "tpu" else None


def present(environment: Mapping[str, str], pci: Path = _PCI) -> bool:
    """Whether a TPU is on the PCI bus, and JAX is not kept from using it."""
    wanted = environment.get("JAX_PLATFORMS", "")
    return (not wanted or "tpu" in wanted.split(",")) and any(map(_is_tpu, pci.glob("*")))


def _is_tpu(function: Path) -> bool:
    ids = [function / "vendor", function / "device"]
    vendor, device = (file.read_text().strip() if file.is_file() else "" for file in ids)
    return vendor == _GOOGLE and device in _TPUS
