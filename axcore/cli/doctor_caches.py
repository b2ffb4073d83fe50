"""The doctor's check of the folders where axcore keeps what it can make again."""

import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from axcore._jax_compat import is_whole_program
from axcore.data.cache import cache_folder as data_folder
from axcore.plugins import Finding, Fix
from axcore.resilience.compile_cache import cache_folder, programs_folder

_PROGRAM = re.compile(r"-[0-9a-f]{64}-cache$")
_DRAFT_OF_PROGRAM = re.compile(r"-[0-9a-f]{64}\.\d+$")
_DRAFT = re.compile(r"\.\d+\.tmp$")
"""What the names end with of a program, a draft of one, and a draft of another file."""

_UNTOUCHED_S = 3600.0
"""A file that nobody wrote to for so long is not being written."""


def caches() -> Iterator[Finding]:
    """The folders can be written, every program can be read, and no draft was left behind."""
    programs = programs_folder()
    folders = [cache_folder(), programs, data_folder()]
    found = [
        *(_unwritable(folder) for folder in folders if folder.is_dir()),
        _broken_programs(programs),
        _left_drafts([cache_folder(), data_folder()], programs),
    ]
    yield from filter(None, found)
    sizes = [_size(file) for file in _named(programs, _PROGRAM)]
    text = f"{len(sizes)} compiled programs, {sum(sizes) / 2**20:.0f} MiB, in {programs}"
    yield Finding("ok", text)


def _unwritable(folder: Path) -> Finding | None:
    if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return None
    is_own = folder.stat().st_uid == os.getuid()
    return Finding(
        "error",
        f"{folder} cannot be read and written",
        f"chmod u+rwx {folder}" if is_own else f"chown -R {os.getuid()} {folder}",
        Fix(f"let its owner read and write {folder}", lambda: _open_up(folder)) if is_own else None,
    )


def _open_up(folder: Path) -> None:
    folder.chmod(folder.stat().st_mode | 0o700)


def _broken_programs(folder: Path) -> Finding | None:
    files = [file for file in _named(folder, _PROGRAM) if _is_untouched(file) and _is_broken(file)]
    if not files:
        return None
    text = f"{_count(files, 'compiled program')} cannot be read and will be compiled at each start"
    return Finding("warning", f"{text}: {files[0]}", fix=_removal(files))


def _is_broken(file: Path) -> bool:
    try:
        return not is_whole_program(file.read_bytes())
    except FileNotFoundError:  # another run removes files, too
        return False


def _left_drafts(folders: Sequence[Path], programs: Path) -> Finding | None:
    found = {file for folder in folders for file in _named(folder, _DRAFT, glob="**/*")}
    found.update(_named(programs, _DRAFT_OF_PROGRAM))
    files = sorted(filter(_is_untouched, found))
    if not files:
        return None
    size = sum(map(_size, files)) / 2**20
    text = f"{_count(files, 'draft')} of killed processes, {size:.1f} MiB: {files[0]}"
    return Finding("warning", text, fix=_removal(files))


def _named(folder: Path, end: re.Pattern[str], glob: str = "*") -> Iterator[Path]:
    """Yields the files of a folder whose names end so."""
    for file in folder.glob(glob):
        if end.search(file.name) and file.is_file():
            yield file


def _is_untouched(file: Path) -> bool:
    try:
        return time.time() - file.stat().st_mtime > _UNTOUCHED_S
    except FileNotFoundError:
        return False


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def _removal(files: Sequence[Path]) -> Fix:
    def remove() -> None:
        for file in files:
            file.unlink(missing_ok=True)

    return Fix(f"remove {_count(files, 'file')} in {files[0].parent}", remove)


def _count(files: Sequence[Path], what: str) -> str:
    return f"{len(files)} {what}{'' if len(files) == 1 else 's'}"
