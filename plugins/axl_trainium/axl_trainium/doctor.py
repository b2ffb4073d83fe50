"""`axcore doctor`: can JAX reach Trainium, and is it a version that Neuron supports?"""

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from axcore.plugins import Finding

NEWEST_JAX = (0, 10, 0)


def neuron_packages() -> Iterator[Finding]:
    """Looks for the Neuron runtime's JAX plugin and at jax's version."""
    yield neuron_finding(_installed("libneuronxla"), _installed("jax") or "0")


def neuron_finding(runtime: str | None, jax: str) -> Finding:
    """Returns what there is to say of these versions; `runtime` is None where not installed."""
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


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
