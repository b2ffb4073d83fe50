"""What a change of a repository costs: its lines by new files, existing files and tests.

Lines are those of `axcore.complexity.lines`. Where a hunk takes lines away and adds others, the
larger number counts: an edited line is one line, not two.
"""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

import attrs

from axcore.complexity.lines import code_lines
from axcore.errors import ComplexityError

Kind = Literal["new", "existing", "test", "other"]
"""A new module, one that was there, a test, or a file that is not Python."""

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NOTHING = "0" * 40


@attrs.frozen
class FileChange:
    """Lines of one file that were written or changed.

    Args:
        path: In the repository, after the change; before it where the file was deleted.
        kind: What the file is.
        lines: Lines of code; of any text but blanks where it could not be parsed.
        is_parsed: Whether the lines were counted from a syntax tree.
    """

    path: str
    kind: Kind
    lines: int
    is_parsed: bool


@attrs.frozen
class Change:
    """A change between two commits.

    Args:
        title: What it is called: the range, or a commit's subject.
        files: The files that it touches, in the order of their paths.
    """

    title: str
    files: tuple[FileChange, ...]

    def lines(self, kind: Kind) -> int:
        """Return the number of lines in files of one kind."""
        return sum(file.lines for file in self.files if file.kind == kind)


def measure_change(repository: Path, base: str, head: str) -> Change:
    """Return what is between two commits.

    Raises:
        ComplexityError: The folder is not a git repository, or a commit is not there.
    """
    base, head = _commit(repository, base), _commit(repository, head)
    return Change(f"{base[:10]}..{head[:10]}", tuple(_files(repository, base, head)))


def measure_commits(repository: Path, base: str, head: str) -> tuple[Change, ...]:
    """Return each change on the way from `base` to `head`, oldest first, merges as one.

    Raises:
        ComplexityError: The folder is not a git repository, or a commit is not there.
    """
    base, head = _commit(repository, base), _commit(repository, head)
    log = _git(
        repository, "log", "--first-parent", "--reverse", "--format=%H %s", f"{base}..{head}"
    )
    changes, before = [], base
    for line in log.splitlines():
        commit, _, subject = line.partition(" ")
        changes.append(Change(subject, tuple(_files(repository, before, commit))))
        before = commit
    return tuple(changes)


def _files(repository: Path, base: str, head: str) -> Iterator[FileChange]:
    raw = _git(repository, "diff", "--raw", "-z", "--no-abbrev", "-M", base, head)
    fields = iter(raw.split("\0"))
    for header in fields:
        if not header:
            return
        _, _, old, new, status = header.split(" ")
        path = next(fields)
        if status[0] in "RC":
            path = next(fields)
        yield _file(repository, path, old, new, is_new=status[0] == "A")


def _file(repository: Path, path: str, old: str, new: str, *, is_new: bool) -> FileChange:
    before, after = _text(repository, old), _text(repository, new)
    kind = _kind(path, is_new=is_new)
    if before is None or after is None:
        return FileChange(path, "other", 0, is_parsed=False)
    parsed = kind != "other" and _is_python(before) and _is_python(after)
    count = code_lines if parsed else _written
    code_before, code_after = count(before), count(after)
    hunks = _hunks(repository, before, after, old, new)
    lines = sum(max(len(gone & code_before), len(come & code_after)) for gone, come in hunks)
    return FileChange(path, kind, lines, is_parsed=parsed)


def _kind(path: str, *, is_new: bool) -> Kind:
    where = PurePosixPath(path)
    if where.suffix != ".py":
        return "other"
    is_test = {"test", "tests"} & set(where.parts[:-1]) or where.stem == "conftest"
    if is_test or where.stem.startswith("test_") or where.stem.endswith("_test"):
        return "test"
    return "new" if is_new else "existing"


def _hunks(
    repository: Path, before: str, after: str, old: str, new: str
) -> Iterator[tuple[frozenset[int], frozenset[int]]]:
    """Yield the numbers of the lines that each hunk takes away and adds."""
    if old == _NOTHING or new == _NOTHING:
        yield _all_lines(before), _all_lines(after)
        return
    diff = _git(repository, "diff", "-U0", "--no-color", "--no-ext-diff", old, new)
    for line in diff.splitlines():
        match = _HUNK.match(line)
        if match:
            first, count, first_new, count_new = match.groups()
            yield _numbers(first, count), _numbers(first_new, count_new)


def _numbers(first: str, count: str | None) -> frozenset[int]:
    return frozenset(range(int(first), int(first) + int(count or 1)))


def _all_lines(text: str) -> frozenset[int]:
    return frozenset(range(1, text.count("\n") + 2))


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def _written(text: str) -> frozenset[int]:
    return frozenset(i for i, line in enumerate(text.splitlines(), start=1) if line.strip())


def _text(repository: Path, blob: str) -> str | None:
    """Return a blob's text, empty where there is no blob, None where it is not text."""
    if blob == _NOTHING:
        return ""
    done = subprocess.run(
        ["git", "-C", str(repository), "cat-file", "blob", blob], capture_output=True, check=False
    )
    if done.returncode or b"\0" in done.stdout:
        return None  # a submodule, or binary data
    return done.stdout.decode("utf-8", errors="replace")


def _commit(repository: Path, name: str) -> str:
    try:
        return _git(
            repository, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}"
        ).strip()
    except ComplexityError as error:
        raise ComplexityError(
            f"{name!r} is not a commit: {error.what}",
            where=str(repository),
            hint="give two commits as git knows them: BASE..HEAD",
        ) from None


def _git(repository: Path, *args: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *args],
            capture_output=True,
            check=False,
            text=True,
            errors="replace",
        )
    except FileNotFoundError as error:
        raise ComplexityError("git is not installed", hint="install git") from error
    if done.returncode:
        raise ComplexityError(done.stderr.strip() or f"git {args[0]} failed", where=str(repository))
    return done.stdout
