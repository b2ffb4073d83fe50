"""Claiming a run directory: process 0 does it, for all processes of the run."""

import hashlib
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from axcore.config import render_config, resumable_paths, to_json
from axcore.distributed import all_gather_str, broadcast_object, is_process_zero, process_count
from axcore.errors import CheckpointError
from axcore.trainer.run_directory.code import RunCode, find_code
from axcore.trainer.run_directory.directory import TEXT_NAME, RunDirectory, compared_lines
from axcore.trainer.run_directory.identity import RunIdentity, data_digest, write_identity
from axcore.trainer.run_directory.origin import write_origin
from axcore.whole_files import read_regular

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
    directory: Path | str, cfg: Any, data: Mapping[str, Any]
) -> Iterator[LockedRun]:
    """Claims a run directory for a config while the context lasts.

    Args:
        directory: Of the run, the same one in every process.
        cfg: The resolved config.
        data: What its training batches depend on.

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
        lines = compared_lines(texts["config_text"], resumable)
        identity = write_identity(path, config_lines=lines, data=data_digest(data))
        return _digest(path), locks[0].changes, identity.as_json()

    try:
        digest, changes, identity = broadcast_object(_NAME, lock)
        _check_is_shared(path, digest)
        yield LockedRun(path, tuple(changes), RunIdentity(**identity), code)
    finally:
        for one in locks:
            one.close()


def _check_is_shared(path: Path, digest: str) -> None:
    """Checks that every process sees what process 0 has just written."""
    if process_count() == 1:
        return
    is_seen = is_process_zero() or _digest(path) == digest
    hosts = all_gather_str(_NAME, "" if is_seen else socket.gethostname())
    blind = [f"process {index} on {host}" for index, host in enumerate(hosts) if host]
    if blind:
        raise CheckpointError(
            f"{', '.join(blind[:8])} cannot see the {TEXT_NAME} that process 0 wrote",
            where=str(path),
            hint="use a --dir on a file system that all processes share",
        )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(read_regular(path / TEXT_NAME)).hexdigest()
    except OSError:
        return ""
