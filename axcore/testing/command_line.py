"""Running `axcore` as a user would: in an interpreter of its own."""

import os
import subprocess
import sys
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
