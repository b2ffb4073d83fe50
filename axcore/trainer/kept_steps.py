"""`KeptSteps`: train steps that one attempt of a launch compiled, for the attempts after it.

An attempt that finds its step neither traces nor compiles it. What is found was made from an equal
config, mesh and place, and from files of Python that have not changed since.
"""

import hashlib
import os
import pickle
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from axcore._jax_compat import dump_program, load_program, recording_cached_programs
from axcore.ops import KernelPlan
from axcore.whole_files import write_whole


class KeptStep(NamedTuple):
    """A compiled step, and the kernels that were chosen while it was traced."""

    compiled: Any
    plan: KernelPlan


class KeptSteps:
    """A folder of compiled steps, a file each."""

    def __init__(self, folder: Path) -> None:
        """Reads nothing yet.

        Args:
            folder: That of a launch. Nobody else may write it: what lies there is unpickled.
        """
        self._folder = folder

    def find(self, description: str, devices: Sequence[Any]) -> KeptStep | None:
        """Returns the step that was kept under a description; warns where it cannot be loaded."""
        path = self._path(description)
        if not path.exists():
            return None
        try:
            kept = pickle.loads(path.read_bytes())
            if kept["files"] != versions_of(kept["files"]):
                return None
            return KeptStep(load_program(kept["program"], devices), kept["plan"])
        except Exception as error:  # whatever pickle and the devices may raise
            warnings.warn(f"the kept step is made again: {error!r}", stacklevel=2)
            return None

    def compile(self, description: str, lowered: Any, plan: KernelPlan, options: Any) -> Any:
        """Compiles a step and keeps it, unless it calls back into this process; returns it.

        A step that cannot be kept costs a warning.

        Args:
            description: What `find` will look for.
            lowered: The step traced and lowered.
            plan: The kernels that were chosen meanwhile.
            options: Those of the compiler.
        """
        with recording_cached_programs() as cached:
            compiled = lowered.compile(compiler_options=options)
        try:
            program = dump_program(compiled, cached)
            if program is not None:
                self._write(self._path(description), program, plan)
        except Exception as error:  # whatever pickle, the disk and the devices may raise
            warnings.warn(f"the compiled step is not kept: {error!r}", stacklevel=2)
        return compiled

    def _write(self, path: Path, program: bytes, plan: KernelPlan) -> None:
        kept = {"files": versions_of(files_of_modules()), "plan": plan, "program": program}
        write_whole(path, pickle.dumps(kept))

    def _path(self, description: str) -> Path:
        return self._folder / hashlib.sha256(description.encode()).hexdigest()


def files_of_modules() -> set[str]:
    """Returns the files of all modules that are loaded."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file for file in files if file}


def versions_of(files: Iterable[str]) -> dict[str, tuple[int, int] | None]:
    """Returns the versions of files, by which something made of them can be found out of date."""
    return {file: _version(file) for file in files}


def _version(file: str) -> tuple[int, int] | None:
    try:
        state = os.stat(file)
    except OSError:
        return None  # in an archive, or gone
    return state.st_mtime_ns, state.st_size
