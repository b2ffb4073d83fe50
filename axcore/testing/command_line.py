"""axcore as a user has it: `axcore` in an interpreter of its own, plugins installed on disk."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import attrs


@attrs.frozen
class Ran:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str


@attrs.frozen(kw_only=True)
class CommandLine:
    """Calling it runs `axcore` with some arguments, on host devices, and returns how it ended.

    Args:
        folder: The working directory.
        environment: Variables set in addition to those of this process.
    """

    folder: Path
    environment: Mapping[str, str] = attrs.field(factory=dict)

    def __call__(self, *arguments: str, **environment: str) -> Ran:
        """Run `axcore` to its end; what is on `sys.path` here is found there, too."""
        done = subprocess.run(
            [sys.executable, "-m", "axcore", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                **self.environment,
                **environment,
            },
        )
        return Ran(done.returncode, done.stdout, done.stderr)


def make_dist(
    root: Path,
    name: str,
    plugin: str,
    *,
    version: str = "1.0",
    level: int = 1,
    plugin_name: str | None = None,
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write a distribution under `root`, as pip would install it; returns its package's folder.

    `axl-acme` becomes the package `axl_acme` with a module `axl_acme.plugin`, and metadata whose
    entry point brings the plugin. It is found once `root` is on `sys.path`.

    Args:
        root: A folder, made if missing; several distributions can share it.
        name: Of the distribution.
        plugin: Source of the module `plugin`; common indentation is taken off.
        version: Of the distribution.
        level: Of the plugin interface; the entry point's group is `axcore.v<level>`.
        plugin_name: Name of the entry point; the distribution's where left out.
        files: Further sources, by path in the package.
    """
    package = name.replace("-", "_")
    info = f"{package}-{version}.dist-info"
    sources = {"__init__.py": "", "plugin.py": plugin, **(files or {})}
    for path, source in sources.items():
        _write(root / package / path, textwrap.dedent(source))
    _write(root / info / "METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    _write(
        root / info / "entry_points.txt",
        f"[axcore.v{level}]\n{plugin_name or name} = {package}.plugin\n",
    )
    return root / package


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
