"""`axcore doctor`: is what JAX needs to reach NVIDIA GPUs installed?"""

from collections.abc import Iterator
from importlib.metadata import distributions

from axcore.plugins import Finding

_PJRT = ("jax-cuda12-pjrt", "jax-cuda13-pjrt")


def cuda_packages() -> Iterator[Finding]:
    """Looks for JAX's CUDA plugin among the installed distributions."""
    installed = {dist.name.lower().replace("_", "-"): dist.version for dist in distributions()}
    yield cuda_finding(installed)


def cuda_finding(installed: dict[str, str]) -> Finding:
    """Returns what there is to say, given versions by distribution name."""
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
