"""Build a token store: the parts of its source, in parallel, in processes of their own."""

import fcntl
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import attrs

from axcore.config.json_files import parse_json, read_json_file
from axcore.data.document import Source
from axcore.data.packing.corpus import Corpus, check_corpus
from axcore.data.sources.file_source import FileSource, check_bad_records
from axcore.data.store.manifest import MANIFEST, SPLITS, Manifest, copy_tokenizer
from axcore.data.store.part import (
    UNIQUE,
    PartBuilder,
    bad_file,
    done_file,
    find_duplicates,
    without_duplicates,
)
from axcore.data.store.plan import PLAN, Plan, make_plan, plan_identity, read_plan
from axcore.data.store.pool import built_in_processes
from axcore.data.store.reader import TokenStoreDirectory, open_store
from axcore.data.store.shard import PAIRS, TOKENS, ShardInfo
from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.data.transforms.filters import DUPLICATE
from axcore.errors import DataError
from axcore.whole_files import whole_file, write_whole

LOCK = ".lock"
_BYTES_A_PROCESS = 4 << 20
"""Below that, starting a process takes longer than it saves."""


_EVERY_S = 10.0
_MIB = 1 << 20


@attrs.frozen
class BuildProgress:
    """How far a build is.

    Attributes:
        done_bytes: Bytes of the source that are in the store.
        total_bytes: Bytes of the source.
        bytes_per_s: Since this start of the build; 0 before its first part.
    """

    done_bytes: int
    total_bytes: int
    bytes_per_s: float

    @property
    def left_s(self) -> float | None:
        """Seconds to the end at this rate; None where it is not known."""
        left = self.total_bytes - self.done_bytes
        return left / self.bytes_per_s if self.bytes_per_s else None


def build_store(
    source: Source,
    tokenizer: Tokenizer.Config,
    folder: str | Path,
    *,
    validation_fraction: float,
    processes: int | None = None,
    report: Callable[[BuildProgress], None] = lambda progress: None,
) -> TokenStoreDirectory:
    """Tokenize a source into a store, and returns it; one that is there already is opened.

    A build that was stopped in any way resumes when it is called again: the parts that it finished
    stay. What is in the store does not depend on the number of processes.

    Args:
        source: What to read, made of files.
        tokenizer: What makes tokens of it.
        folder: Where the store is to be.
        validation_fraction: The share of the documents to hold out.
        processes: How many work side by side; None for as many as there are cores.
        report: Called with how far the build is, at its start and after each part.

    Raises:
        DataError: The source cannot be read, contains nothing to train on or more bad records than
            it may, or the folder contains another store.
    """
    root = Path(folder).expanduser()
    if not isinstance(source, FileSource):
        raise DataError(
            f"{type(source).__name__} cannot be built into a store: it is not made of files.",
            hint="Make it a subclass of axcore.data.FileSource.",
        )
    # To the end: nobody must open a store while it is joined.
    with _locked(root):
        plan = _planned(root, source, tokenizer, validation_fraction)
        # A store is complete once it has its manifest; without it, parts are missing or not yet
        # joined.
        if not (root / MANIFEST).exists():
            _build_parts(root, plan, processes or os.cpu_count() or 1, report)
            _finish(root, plan, source, tokenizer)
        store = open_store(root)
        # Shards with duplicates go only now: until a manifest names others, a resumed build needs
        # them.
        _remove_replaced(root, store.manifest.splits)
    return store


def _planned(
    root: Path, source: FileSource, tokenizer: Tokenizer.Config, validation_fraction: float
) -> Plan:
    """Return the plan of the build that was begun here, or makes one."""
    (root / "shards").mkdir(exist_ok=True)
    # Nobody else builds here now, so no draft can be in use.
    for draft in root.glob("**/*.tmp"):  # of a build that was killed
        draft.unlink(missing_ok=True)
    # The plan is written before any part: whoever resumes must cut the source as it was cut before,
    # since finished parts are known by their numbers alone.
    if not (root / PLAN).exists():
        plan = make_plan(source, tokenizer, validation_fraction)
        write_whole(root / PLAN, plan.to_json())
        return plan
    plan = read_plan(root)
    wanted = plan_identity(source, tokenizer, validation_fraction)
    changed = [
        f"{name} was {getattr(plan, name)}, is {value}"
        for name, value in wanted.items()
        if getattr(plan, name) != value
    ]
    if changed:
        raise DataError(
            f"The folder contains a store of something else: {'; '.join(changed)}.",
            where=str(root.absolute()),
            hint="Build into another folder, or remove this one.",
        )
    return plan


def _build_parts(
    root: Path, plan: Plan, processes: int, report: Callable[[BuildProgress], None]
) -> None:
    # A part counts as built when its done file is there, which is written after its shards.
    todo = [index for index in range(len(plan.parts)) if not done_file(root, index).exists()]
    total, done = sum(plan.sizes), sum(plan.sizes) - sum(plan.sizes[index] for index in todo)
    since, before = time.perf_counter(), done
    report(BuildProgress(done, total, 0.0))
    for index in _built(root, plan, todo, processes):
        done += plan.sizes[index]
        rate = (done - before) / (time.perf_counter() - since)
        report(BuildProgress(done, total, rate))


def _built(root: Path, plan: Plan, todo: Sequence[int], processes: int) -> Iterator[int]:
    """Yield the parts as they are done."""
    # A small source is read by this process; starting another one takes a second.
    useful = sum(plan.sizes[index] for index in todo) // _BYTES_A_PROCESS
    count = min(processes, len(todo), useful)
    if count > 1:
        yield from built_in_processes(root, plan, todo, count)
        return
    builder = PartBuilder(root, plan)
    for index in todo:
        builder.build(index)
        yield index


def _finish(root: Path, plan: Plan, source: FileSource, tokenizer: Tokenizer.Config) -> None:
    """Write what holds the parts together, and the manifest last."""
    # Before anything is joined: parts of two versions would make a store that no source has.
    _check_unchanged(root, plan, source, tokenizer)
    parts = [read_json_file(done_file(root, i)) for i in range(len(plan.parts))]
    counts = {
        name: sum(part[name] for part in parts) for name in ("records", "bad_records", "characters")
    }
    _gather_bad_records(root, len(parts))
    _check_bad_records(root, plan, counts)
    dtype = PartBuilder(root, plan).dtype
    infos = [{name: ShardInfo(**part["splits"][name]) for name in SPLITS} for part in parts]
    dropped = sum((Counter(part.get("dropped", {})) for part in parts), Counter[str]())
    if source.marks_duplicates:
        # Here, not in the workers: which of equal documents comes first must not depend on which
        # worker was faster.
        repeats = find_duplicates(root, len(parts))
        dropped[DUPLICATE] = sum(int(one.sum()) for one in repeats)
        infos = [
            without_duplicates(root, index, part, repeats[index], dtype)
            for index, part in enumerate(infos)
        ]
    splits = {name: tuple(part[name] for part in infos if part[name].documents) for name in SPLITS}
    manifest = Manifest(
        source=source.describe(),
        source_digest=plan.source_digest,
        tokenizer=copy_tokenizer(tokenizer, root),
        tokenizer_digest=plan.tokenizer_digest,
        validation_fraction=plan.validation_fraction,
        dtype=dtype.str,
        splits=splits,
        dropped=dict(sorted(dropped.items())),
        **counts,
    )
    # Opened from the manifest in memory, to check it before it is written.
    store = TokenStoreDirectory(root, manifest)
    corpus = Corpus(store.splits["train"], store.splits["validation"])
    has_text = manifest.characters > 0
    check_corpus(corpus, source, plan.validation_fraction, has_text=has_text)
    # Last, since it is what makes the folder a store.
    manifest.write(root)


def _remove_replaced(root: Path, splits: Mapping[str, tuple[ShardInfo, ...]]) -> None:
    """Remove shards with duplicates, of which there are others without, and keys.

    A build that was killed after its manifest was written may have left some.
    """
    for split in splits.values():
        for info in split:
            if info.name.endswith(UNIQUE):
                for suffix in (TOKENS, PAIRS):
                    replaced = info.name.removesuffix(UNIQUE) + suffix
                    (root / "shards" / replaced).unlink(missing_ok=True)
    for keys in (root / "shards").glob("*.keys"):
        keys.unlink()


def _check_unchanged(
    root: Path, plan: Plan, source: FileSource, tokenizer: Tokenizer.Config
) -> None:
    """Check that files are what they were when the build was planned.

    Raises:
        DataError: One is not: parts of the store may be of one version, and parts of the other.
    """
    now = plan_identity(source, tokenizer, plan.validation_fraction)
    if now["source_digest"] != plan.source_digest:
        raise DataError(
            f"The files of {source.describe()} changed while they were read.",
            where=str(root.absolute()),
            hint="Let nobody write them meanwhile; remove the folder, and build again.",
        )


def _gather_bad_records(root: Path, num_parts: int) -> None:
    with whole_file(root / "quarantine.jsonl") as gathered:
        for index in range(num_parts):
            if (path := bad_file(root, index)).exists():
                with path.open("rb") as part:
                    shutil.copyfileobj(part, gathered)


def _check_bad_records(root: Path, plan: Plan, counts: dict[str, int]) -> None:
    with open(root / "quarantine.jsonl", encoding="utf-8") as lines:
        line = lines.readline()
    first = parse_json(line) if line else {"reason": "", "file": ""}
    error = DataError(first["reason"], where=str(root / "quarantine.jsonl"))
    check_bad_records(plan.build_source(), counts["records"], counts["bad_records"], [error])


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Make the folder, and wait until nobody else builds in it."""
    if root.exists() and _is_something_else(root):
        raise DataError(
            f"{str(root)!r} contains something else than a token store.",
            where=str(root.absolute()),
            hint="Name a folder that is empty, or that is not there yet.",
        )
    root.mkdir(parents=True, exist_ok=True)
    with open(root / LOCK, "w") as lock:
        # Runs that need the same store wait for the one that builds it. The kernel releases the
        # lock of a process that was killed.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_something_else(root: Path) -> bool:
    """Return whether no build has begun here, and there is something already.

    A build makes the lock first, and plans after it: one that was stopped then has no plan yet.
    """
    if not root.is_dir():
        return True
    names = {path.name for path in root.iterdir()}
    return bool(names) and not names & {LOCK, PLAN}


class ProgressLine:
    """Shows a build's progress."""

    def __init__(self) -> None:
        self._is_live = sys.stderr.isatty()
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_live and self._shown_at:
            print(file=sys.stderr)

    def show(self, progress: BuildProgress) -> None:
        """Show how far the build is; elsewhere than on a terminal not more often than need be."""
        is_first_or_last = progress.left_s in (None, 0)
        # On a terminal one line is written again and again; in a log only now and then.
        if self._is_live:
            print(f"\r\x1b[K{_progress_text(progress)}", end="", file=sys.stderr, flush=True)
        elif is_first_or_last or time.monotonic() - self._shown_at >= _EVERY_S:
            print(_progress_text(progress), file=sys.stderr, flush=True)
        else:
            return
        self._shown_at = time.monotonic()


def _progress_text(progress: BuildProgress) -> str:
    """Return progress as one line."""
    done, total = progress.done_bytes / _MIB, progress.total_bytes / _MIB
    text = f"data: {done:,.1f} of {total:,.1f} MiB"
    if progress.left_s is None:
        return text
    return f"{text}, {progress.bytes_per_s / _MIB:,.1f} MiB/s, {_duration(progress.left_s)} left"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
