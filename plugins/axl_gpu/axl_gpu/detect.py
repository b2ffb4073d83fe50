"""Recognising NVIDIA GPUs: by their driver before JAX starts, by their names after that."""

from collections.abc import Mapping
from pathlib import Path

_DRIVER = Path("/proc/driver/nvidia/version")
_PLATFORMS = {"gpu", "cuda"}

_GENERATIONS = {
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
}


def detect(platform: str, device_kind: str) -> str | None:
    """Returns the generation of a GPU, or None for one whose figures are not known.

    PCIe cards and slices of a GPU have other figures than the SXM module of the same name, so
    only whole names are taken.
    """
    return _GENERATIONS.get(device_kind) if platform in _PLATFORMS else None


def present(environment: Mapping[str, str], driver: Path = _DRIVER) -> bool:
    """Whether there is a driver here, and JAX is not kept from using it."""
    wanted = environment.get("JAX_PLATFORMS", "")
    is_let = not wanted or not _PLATFORMS.isdisjoint(wanted.split(","))
    return is_let and driver.exists()
