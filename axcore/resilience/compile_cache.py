"""The folder where compiled programs are kept, so that a run that starts again compiles nothing.

jax reads the variables when it is imported. A user who set them, or switched the cache off by
JAX_ENABLE_COMPILATION_CACHE=false, is not overruled.
"""

import contextlib
import hashlib
import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

_FOLDER = "JAX_COMPILATION_CACHE_DIR"
_OTHERS = {
    # jax's default is one second, which leaves out the many small programs around a step: each
    # restart would compile all of them again.
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    # jax's own default of 0 lets the cache's backend choose a minimum; -1 keeps small programs
    # everywhere.
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
_MOST_BYTES = 10 << 30

KEPT_STEPS_VARIABLE = "AXCORE_KEPT_STEPS"
"""Where one attempt of a launch keeps its compiled step for the next."""


def use_compile_cache(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables of jax's persistent compilation cache where nobody has set its folder.

    Of programs that take more than 10 GiB together those go that were not used for longest.
    """
    # jax reads these variables when it is imported. Setting them later does
    # nothing, but would make child processes use another folder than this one.
    if _FOLDER in environment or "jax" in sys.modules:
        return
    folder = programs_folder(environment)
    remove_oldest(folder, _MOST_BYTES)
    environment[_FOLDER] = str(folder)
    for name, value in _OTHERS.items():
        # `setdefault`: who sets only the limits wants them with our folder.
        environment.setdefault(name, value)


def programs_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where jax keeps compiled programs: the user's folder, or axcore's own."""
    own = cache_folder(environment) / "compiled" / _machine()
    return Path(environment.get(_FOLDER) or own)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where axcore keeps what it can make again, for its user."""
    home = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "axcore"


def kept_steps_folder() -> Path | None:
    """Return that of the launch which started this process; None where nobody keeps any."""
    folder = os.environ.get(KEPT_STEPS_VARIABLE)
    return Path(folder) if folder else None


def remove_oldest(folder: Path, most_bytes: int) -> None:
    """Remove the files of a folder that were read or written last longest ago, down to a size."""
    found = []
    for path in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # another run removes files, too
            state = path.stat()
            # Access time, or modification time on file systems mounted with noatime.
            found.append((max(state.st_atime, state.st_mtime), state.st_size, path))
    kept = 0
    for _, size, path in sorted(found, reverse=True):
        kept += size
        if kept > most_bytes:
            # Another run may have removed it, or a running one
            # still uses it: an open file lives on without its name.
            path.unlink(missing_ok=True)


def _machine() -> str:
    """Return a name for machines that run the same code: a home may serve several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    # The instruction sets: a program compiled with AVX-512 ends
    # with SIGILL on a node of the same home that lacks it.
    kind = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    machine = os.uname().machine
    return f"{machine}-{hashlib.sha256(kind.encode()).hexdigest()[:12]}"
