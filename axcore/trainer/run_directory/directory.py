"""`RunDirectory`: a directory that belongs to one config, and to one live process at a time.

axcore.lock     marks the directory as a run's, and is locked while a process trains in it
config.json     the resolved config, for programs
config.txt      the resolved config, for people; later starts are compared with it

Process 0 claims it for all processes of the run, see `locked_run_directory`.
"""

import difflib
import hashlib
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from axcore.checkpoint.lock import FileLock
from axcore.config import describe_resumable, render_config, resumable_paths, to_json
from axcore.distributed import all_gather_str, broadcast_object, is_process_zero, process_count
from axcore.errors import CheckpointError
from axcore.trainer.run_directory.code import RunCode, find_code
from axcore.trainer.run_directory.identity import RunIdentity, data_digest, write_identity
from axcore.trainer.run_directory.origin import write_origin
from axcore.whole_files import read_regular, write_whole

_LOCK_NAME = "axcore.lock"
_JSON_NAME = "config.json"
_TEXT_NAME = "config.txt"
_SHOWN = 12


class RunDirectory:
    """A locked run directory; `close` or the end of the process gives it up.

    Attributes:
        path: The directory, absolute.
        is_new: Whether this lock is the directory's first.
        changes: How the config differs from that of the start before, a line for each value.
    """

    path: Path
    is_new: bool
    changes: tuple[str, ...] = ()

    def __init__(
        self,
        path: Path | str,
        *,
        config_text: str,
        config_json: str,
        resumable: Sequence[str] = (),
    ) -> None:
        """Claim a directory for a config.

        Args:
            path: The directory; made where it is absent.
            config_text: The config, one `path: value` a line.
            config_json: The same config as JSON.
            resumable: Paths that may differ from the earlier start's, with all that is below
                them, such as `max_steps`. Where only those differ, both files are rewritten.

        Raises:
            CheckpointError: The directory is another config's, is not a run's, is in use by a live
                process, or cannot be written. Nothing in it was changed.
        """
        self.path = Path(path).absolute()
        self._lock: FileLock | None = None
        try:
            self._take_lock(config_text, config_json, resumable)
        except OSError as error:
            self.close()
            raise CheckpointError(
                f"the run directory cannot be used: {error}",
                where=str(self.path),
                hint="use another --dir",
            ) from error
        except CheckpointError:
            self.close()
            raise

    def _take_lock(self, config_text: str, config_json: str, resumable: Sequence[str]) -> None:
        # Before the lock: it must not make a file in a directory that is somebody's photos.
        _check_is_free_or_run(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.path / _LOCK_NAME, doing="training here")
        # The text is written last, so a start that was killed before it counts as new.
        self.is_new = not (self.path / _TEXT_NAME).exists()
        if self.is_new:
            _check_is_unused(self.path)
        else:
            before = read_regular(self.path / _TEXT_NAME).decode("utf-8", "replace")
            _check_same_config(self.path / _TEXT_NAME, before, config_text, resumable)
            self.changes = tuple(_changes(before, config_text))
        # JSON before text, whose presence says that both are there.
        _write_if_changed(self.path / _JSON_NAME, config_json)
        _write_if_changed(self.path / _TEXT_NAME, config_text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let another process train here; safe to call twice."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def check_is_there(path: Path) -> None:
    """Check that the run directory was not removed; process 0 of a run looks.

    Raises:
        CheckpointError: It was.
    """
    # Its absence is noticed at each save: writing on
    # would make a new directory with half a run in it.
    if is_process_zero() and not (path / _TEXT_NAME).exists():
        raise CheckpointError(
            "the run directory was removed or moved while the run trained: "
            f"no {_TEXT_NAME} is left",
            where=str(path),
            hint="put it back and start the run again, which resumes from its newest checkpoint",
        )


def _check_is_free_or_run(path: Path) -> None:
    if not path.exists():
        return
    names = os.listdir(path)
    # What a run begins with: a lock alone is a start that was killed.
    if not names or _LOCK_NAME in names or {_JSON_NAME, _TEXT_NAME} <= set(names):
        return
    shown = ", ".join(sorted(names)[:4]) + (", ..." if len(names) > 4 else "")
    raise CheckpointError(
        f"the directory contains {len(names)} files that are not of a run: {shown}",
        where=str(path),
        hint="use an empty or a new --dir",
    )


def _check_is_unused(path: Path) -> None:
    """Refuse a run that has lost its config; an interrupted first start has nothing to lose."""
    names = {name for name in os.listdir(path) if not name.endswith(".tmp")}
    lost = names - {_LOCK_NAME, _JSON_NAME}
    if lost:
        raise CheckpointError(
            f"the run has no {_TEXT_NAME} that this config could be compared with, "
            f"but it contains {', '.join(sorted(lost)[:4])}",
            where=str(path),
            hint=f"put {_TEXT_NAME} back, or use another --dir",
        )


def _check_same_config(path: Path, old: str, text: str, resumable: Sequence[str]) -> None:
    before = _compared_lines(old, resumable)
    now = _compared_lines(text, resumable)
    if before == now:
        return
    changes = [line for line in difflib.unified_diff(before, now, n=0) if not _is_header(line)]
    shown = [f"{line[0]} {line[1:]}" for line in changes[:_SHOWN]]
    if len(changes) > _SHOWN:
        shown.append(f"... and {len(changes) - _SHOWN} more lines")
    raise CheckpointError(
        "the directory is the run of another config (-: that run's, +: this one's)\n"
        + "\n".join(shown),
        where=str(path),
        hint="use another --dir for this config, or undo the changes to resume that run; "
        f"only these may change: {describe_resumable(resumable) or 'none'}",
    )


def _changes(before: str, now: str) -> Iterator[str]:
    old, new = (_values(text) for text in (before, now))
    for path in {**old, **new}:
        if old.get(path) != new.get(path):
            yield f"{path}: {old.get(path, 'default')} -> {new.get(path, 'default')}"


def _values(text: str) -> dict[str, str]:
    parts = (line.partition(": ") for line in text.splitlines())
    return {path: value for path, _, value in parts}


def _compared_lines(text: str, resumable: Sequence[str]) -> list[str]:
    """Return the lines of a config's text that a later start must have, too."""
    return [
        line
        for line in text.splitlines()
        if not _is_at_or_below(line.partition(":")[0].strip(), resumable)
    ]


def _is_at_or_below(path: str, paths: Sequence[str]) -> bool:
    return any(path == one or path.startswith((f"{one}.", f"{one}[")) for one in paths)


def _is_header(line: str) -> bool:
    return line.startswith(("@@ ", "--- \n", "+++ \n"))


def _write_if_changed(path: Path, text: str) -> None:
    data = (text if text.endswith("\n") else text + "\n").encode()
    # Only if changed, so that times of files show when a config did.
    if not path.exists() or read_regular(path) != data:
        write_whole(path, data)


_NAME = "locking the run directory"


class LockedRun(NamedTuple):
    """A run directory that this run has claimed.

    Args:
        path: The directory, absolute.
        changes: How the config differs from that of the start before, a line for each value.
        identity: What its checkpoints are marked with.
        code: What the config names, in process 0; see `renew_code`.
    """

    path: Path
    changes: tuple[str, ...]
    identity: RunIdentity
    code: RunCode = RunCode()


@contextmanager
def locked_run_directory(
    directory: Path | str, cfg: Any, data: Mapping[str, Any], *, is_shared: bool = True
) -> Iterator[LockedRun]:
    """Claim a run directory for a config while the context lasts.

    Args:
        directory: Of the run, of the same name in every process.
        cfg: The resolved config.
        data: What its training batches depend on.
        is_shared: Whether it has to be the same one in every process. Otherwise that of process 0
            is the run's, and the others have what they write themselves, such as hangs.

    Raises:
        CheckpointError: In every process: it cannot be locked, or not all processes see it.
        ConfigError: In every process: the config names code that could not be found again.
    """
    path = Path(directory).absolute()
    locks: list[RunDirectory] = []
    code = RunCode()

    def lock() -> tuple[str, tuple[str, ...], dict[str, str]]:
        nonlocal code
        code = find_code(cfg)
        texts = {"config_text": render_config(cfg), "config_json": to_json(cfg)}
        resumable = resumable_paths(cfg)
        locks.append(RunDirectory(path, **texts, resumable=resumable))
        write_origin(path, cfg, code)
        lines = _compared_lines(texts["config_text"], resumable)
        identity = write_identity(path, config_lines=lines, data=data_digest(data))
        return _digest(path), locks[0].changes, identity.as_json()

    try:
        digest, changes, identity = broadcast_object(_NAME, lock)
        if is_shared:
            _check_is_shared(path, digest)
        else:
            path.mkdir(parents=True, exist_ok=True)
        yield LockedRun(path, tuple(changes), RunIdentity(**identity), code)
    finally:
        for one in locks:
            one.close()


def _check_is_shared(path: Path, digest: str) -> None:
    """Check that every process sees what process 0 has just written."""
    if process_count() == 1:
        return
    # Process 0 wrote it just now; another one that cannot
    # read it has another file system under that path.
    is_seen = is_process_zero() or _digest(path) == digest
    hosts = all_gather_str(_NAME, "" if is_seen else socket.gethostname())
    blind = [f"process {index} on {host}" for index, host in enumerate(hosts) if host]
    if blind:
        raise CheckpointError(
            f"{', '.join(blind[:8])} cannot see the {_TEXT_NAME} that process 0 wrote",
            where=str(path),
            hint="use a --dir on a file system that all processes share, or keep checkpoints in an "
            "object store (checkpoint.directory='s3://bucket/run?staging=/local/run')",
        )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(read_regular(path / _TEXT_NAME)).hexdigest()
    except OSError:
        return ""
