"""Results of benchmarks as JSON: the figures, and what they were measured with.

A file whose rows are renewed one at a time says about each row what it was measured with:
    `recorded`
reads the rows that are there, `stamped` says about a new one when and from what it was made.
"""

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = Path(os.environ.get("BENCHMARK_RESULTS", REPOSITORY / "benchmarks" / "results"))
PACKAGES = ("jax", "jaxlib", "numpy", "optax")
COMPILERS = {
    "tpu": ("libtpu",),
    "gpu": (
        "jax-cuda13-pjrt",
        "nvidia-cuda-nvcc",
        "nvidia-cublas",
        "nvidia-cudnn-cu13",
    ),
}
"""Packages that make programs, by the first word of a target's name."""

SOURCES = ("axcore", "plugins", "benchmarks/*.py", "benchmarks/peers")
"""What figures come from; results and pages are not among it."""


def recorded(name: str) -> dict[str, Any]:
    """Return the figures of `results/<name>.json`, none where there is no such file."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return {}
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return figures


def stamped(row: dict[str, Any], target: str) -> dict[str, Any]:
    """Return a row of figures, and by which command, when and from what it was made.

    Args:
        row: The figures.
        target: The hardware that they are of, whose compilers are named.
    """
    packages = (*PACKAGES, *COMPILERS.get(target.partition("-")[0], ()))
    return {**row, "made": {"command": command_as_run(), **sources(), **_versions(packages)}}


def record(name: str, figures: dict[str, Any], *, command: str = "") -> Path:
    """Write `results/<name>.json` with command, commit, date, versions and hardware.

    Returns its path.

    Args:
        name: Of the benchmark.
        figures: What it measured.
        command: What remakes all figures, where the call at hand made only some of them.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    content = {
        "command": command or command_as_run(),
        **sources(),
        **_versions(PACKAGES),
        "hardware": hardware(),
        "figures": figures,
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def command_as_run() -> str:
    """Return the command of this process, as it is called from the repository."""
    return shlex.join(["python", str(_script()), *map(_without_place, sys.argv[1:])])


def sources() -> dict[str, str]:
    """Return the commit that is checked out, whether sources differ from it, and the date."""
    commit = _git("rev-parse", "--short=12", "HEAD") or "no repository"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *SOURCES)
    now = datetime.now(UTC).isoformat(timespec="minutes")
    return {"commit": commit + ", changed" * bool(changed), "date": now}


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def _versions(packages: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return {"versions": found}


def _without_place(argument: str) -> str:
    """Return an argument, without where another environment's Python is on this machine."""
    return re.sub(r"^/.*/bin/python$", "VENV/bin/python", argument)


def _script() -> Path:
    """Return the script that runs, as it is called from the repository."""
    return Path(sys.argv[0]).resolve().relative_to(REPOSITORY)


def hardware() -> dict[str, Any]:
    """Return the processor, its cores, and how busy the machine was in the last minute."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_average_1min": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
