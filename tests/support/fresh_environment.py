"""A new virtual environment, made without a download, to install plugins in as their users do.

It sees the packages of the environment that the tests run in, which stays as it is.
"""

import os
import site
import subprocess
import venv
from collections.abc import Iterable, Mapping
from pathlib import Path

from quick_flags import xla_flags

_PIP = (
    *("-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
    *("--no-index", "--no-deps", "--no-build-isolation"),
)


class FreshEnvironment:
    """A virtual environment in a folder of its own.

    Args:
        folder: Made here.
        plugins: The only plugins that axcore lets in there.
        flags: Its `XLA_FLAGS`; by default 8 devices that compile fast, and what the user set.
    """

    def __init__(self, folder: Path, plugins: Iterable[str], flags: str | None = None) -> None:
        venv.create(folder, symlinks=os.name != "nt")
        self.python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        mine = {
            "AXCORE_PLUGINS": ",".join(plugins),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": flags or xla_flags(devices=8),
        }
        self.variables: Mapping[str, str] = {**others, **mine}
        self._see_packages_of_this_one(folder)

    def _see_packages_of_this_one(self, folder: Path) -> None:
        lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
        asked = self.run("-c", "import site; print(site.getsitepackages()[0])", folder=folder)
        (Path(asked.stdout.strip()) / "tests.pth").write_text("\n".join(lines), encoding="utf-8")

    def install(self, *distributions: Path) -> None:
        """Installs distributions from copies of their sources, as pip leaves files next to them."""
        copies = self.python.parents[1] / "sources"
        for source in distributions:
            _copy(source, copies / source.name)
        ran = self.run(*_PIP, *(str(copies / one.name) for one in distributions), folder=copies)
        assert ran.returncode == 0, ran.stderr

    def axcore(self, *arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        """Runs `axcore` in a folder."""
        return self.run("-m", "axcore", *arguments, folder=folder)

    def pytest(self, *arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        """Runs pytest in a folder, with warnings as errors."""
        options = ("-q", "-W", "error", "--import-mode=importlib", "-p", "no:cacheprovider")
        return self.run("-m", "pytest", *options, *arguments, folder=folder)

    def run(self, *arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        """Runs the environment's Python in a folder."""
        command = [str(self.python), *arguments]
        return subprocess.run(
            command, cwd=folder, env=self.variables, capture_output=True, text=True, check=False
        )


def _copy(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        inside = path.relative_to(source)
        if _is_source(path) and not _is_left_by_pip(inside):
            copy = target / inside
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())


def _is_source(path: Path) -> bool:
    return path.suffix in (".py", ".toml", ".md", ".txt") or path.name == "LICENSE"


def _is_left_by_pip(path: Path) -> bool:
    return any(part == "build" or part.endswith(".egg-info") for part in path.parts)
