"""Recognising NVIDIA GPUs and checking what JAX needs to reach them, before JAX starts.

A GPU is known by its driver before JAX starts, by its name after that. `axcore doctor` asks whether
JAX's CUDA plugin is installed.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

from axcore.plugins import Finding

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
    """Return the generation of a GPU, or None for one whose figures are not known.

    PCIe cards and slices of a GPU have other figures than the SXM module of the same name, so
    only full names are taken.
    """
    return _GENERATIONS.get(device_kind) if platform in _PLATFORMS else None


def present(environment: Mapping[str, str], driver: Path = _DRIVER) -> bool:
    """Whether there is a driver here, and JAX is not kept from using it."""
    wanted = environment.get("JAX_PLATFORMS", "")
    is_let = not wanted or not _PLATFORMS.isdisjoint(wanted.split(","))
    return is_let and driver.exists()


_PJRT = ("jax-cuda12-pjrt", "jax-cuda13-pjrt")


def cuda_packages() -> Iterator[Finding]:
    """Look for JAX's CUDA plugin among the installed distributions."""
    installed = {dist.name.lower().replace("_", "-"): dist.version for dist in distributions()}
    yield cuda_finding(installed)


def cuda_finding(installed: dict[str, str]) -> Finding:
    """Return what there is to say, given versions by distribution name."""
    found = [f"{name} {installed[name]}" for name in _PJRT if name in installed]
    if not found:
        return Finding(
            "warning",
            "axl-gpu is installed and JAX's CUDA plugin is not: JAX will not see any GPU",
            "pip install 'axl-gpu[cuda13]' where there is a GPU",
        )
    if len(found) > 1:
        return Finding(
            "error", f"{' and '.join(found)} are both installed", "uninstall one of them"
        )
    return Finding("ok", found[0])
