"""Recognising TPUs and checking what JAX needs to reach them, before JAX starts.

A TPU is known by its PCI function before JAX starts, by its device's kind after that. `axcore
doctor` asks whether libtpu is installed.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from axcore.plugins import Finding

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
    """Return the generation of a TPU device, or None for one that is not described."""
    return _GENERATIONS.get(device_kind) if platform == "tpu" else None


def present(environment: Mapping[str, str], pci: Path = _PCI) -> bool:
    """Whether a TPU is on the PCI bus, and JAX is not kept from using it."""
    wanted = environment.get("JAX_PLATFORMS", "")
    return (not wanted or "tpu" in wanted.split(",")) and any(map(_is_tpu, pci.glob("*")))


def _is_tpu(function: Path) -> bool:
    ids = [function / "vendor", function / "device"]
    vendor, device = (file.read_text().strip() if file.is_file() else "" for file in ids)
    return vendor == _GOOGLE and device in _TPUS


def libtpu() -> Iterator[Finding]:
    """Look for libtpu among the installed distributions."""
    try:
        found: str | None = version("libtpu")
    except PackageNotFoundError:
        found = None
    yield libtpu_finding(found)


def libtpu_finding(found: str | None) -> Finding:
    """Return what there is to say about this version, None where it is not installed."""
    if found is None:
        return Finding(
            "warning",
            "axl-tpu is installed and libtpu is not: JAX will not see any TPU",
            "pip install 'axl-tpu[tpu]' where there is a TPU, or to compile for one",
        )
    return Finding("ok", f"libtpu {found}")
