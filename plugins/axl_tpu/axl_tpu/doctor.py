"""`axcore doctor`: is what JAX needs to reach TPUs installed?"""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from axcore.plugins import Finding


def libtpu() -> Iterator[Finding]:
    """Looks for libtpu among the installed distributions."""
    try:
        found: str | None = version("libtpu")
    except PackageNotFoundError:
        found = None
    yield libtpu_finding(found)


def libtpu_finding(found: str | None) -> Finding:
    """Returns what there is to say of this version, None where it is not installed."""
    if found is None:
        return Finding(
            "warning",
            "axl-tpu is installed and libtpu is not: JAX will not see any TPU",
            "pip install 'axl-tpu[tpu]' where there is a TPU, or to compile for one",
        )
    return Finding("ok", f"libtpu {found}")
