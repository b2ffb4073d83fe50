"""`axcore doctor`: can JAX reach Trainium, is it a version that Neuron supports, is there NKI?"""

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from axcore.plugins import Finding
from axl_trainium.sdk import is_installed

NEWEST_JAX = (0, 10, 0)


def neuron_packages() -> Iterator[Finding]:
    """Look for the Neuron runtime's JAX plugin, at jax's version, and for NKI."""
    runtime = _installed("libneuronxla")
    yield neuron_finding(runtime, _installed("jax") or "0")
    if runtime is not None:
        yield nki_finding(has_nki=is_installed())


def neuron_finding(runtime: str | None, jax: str) -> Finding:
    """Return what there is to say about these versions; `runtime` is None where not installed."""
    if runtime is None:
        return Finding(
            "warning",
            "axl-trainium is installed and libneuronxla is not: JAX will not see any Trainium",
            "install the AWS Neuron SDK where there is one",
        )
    if tuple(int(part) for part in re.findall(r"\d+", jax)[:3]) > NEWEST_JAX:
        return Finding(
            "error",
            f"jax is {jax}; Neuron supports at most {'.'.join(map(str, NEWEST_JAX))}",
            "pip install 'jax==0.10.0'",
        )
    return Finding("ok", f"libneuronxla {runtime}, jax {jax}")


def nki_finding(*, has_nki: bool) -> Finding:
    """Return what there is to say about NKI, in addition to the runtime."""
    if has_nki:
        return Finding("ok", "NKI, for kernels of our own")
    return Finding(
        "warning",
        "NKI is not installed: kernels pinned by nki_* names are refused on a chip",
        "install the package nki of the AWS Neuron SDK",
    )


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
