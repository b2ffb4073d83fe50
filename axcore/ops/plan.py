"""The plan of a program: which kernels were chosen, for which calls and why, and block sizes.

Ops choose while they are traced. A trainer records what its step chooses, prints the plan, and
keeps `to_json()` of it with the run.

Block sizes are from a table of what was measured on chips, or by a rule where nothing was. The
table is a JSON file next to the kernel, with an entry for each chip and bucket of calls. Only
`axcore kernels tune` writes it, on the chip. A kernel asks for its entry by `choose_block_sizes`
while it is traced.
"""

import contextlib
import functools
import importlib.resources
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import attrs

from axcore._jax_compat import user_context
from axcore.errors import KernelError
from axcore.ops.dispatch import Call, ChosenKernel, Feature, choose, current_policy
from axcore.plugins import Hardware, Kernel
from axcore.registration import CORE

BlockSizes = TypeVar("BlockSizes")
"""A frozen attrs class whose fields are ints: the block sizes of one kernel."""

Bucket = Mapping[str, Feature]

_FIELDS = {"chip", "bucket", "block_sizes", "date"}
"""What every entry of a file has."""


@attrs.frozen(kw_only=True)
class BlockSizeEntry(Generic[BlockSizes]):
    """Block sizes, and where they are from: `default`, or what they were tuned for."""

    kernel: str
    block_sizes: BlockSizes
    source: str

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in sizes_of(self.block_sizes).items())
        return f"{self.kernel}: {sizes} ({self.source})"


# jit caches on it: each candidate that is tuned must be traced by itself.
_forced = user_context(())


@attrs.frozen(kw_only=True, eq=False)
class BlockSizeTable(Generic[BlockSizes]):
    """The block sizes of one kernel.

    What decides must not change where a call is split over devices by rows or by heads.

    Args:
        kernel: The kernel's key, `op/name`.
        package: The package that the file, `op.name.json`, is in.
        default: Block sizes for a call that the kernel accepts, where none were measured.
        candidates: What tuning tries: every one must fit the chip.
        bucket: What calls have in common that want the same block sizes; sizes rounded, as by
            `power_of_two`.
    """

    kernel: str = attrs.field(validator=attrs.validators.matches_re(r"[^/]+/[^/]+"))
    package: str
    default: Callable[[Call, Hardware], BlockSizes]
    candidates: Callable[[Call, Hardware], Iterable[BlockSizes]]
    bucket: Callable[[Call], Bucket]

    def entry(self, call: Call, hardware: Hardware) -> BlockSizeEntry[BlockSizes]:
        """Return the block sizes for a call on some hardware.

        Raises:
            KernelError: The file is none that `axcore kernels tune` writes.
        """
        for forced in cast(tuple[BlockSizeEntry[BlockSizes], ...], _forced.value):
            if forced.kernel == self.kernel:
                return forced
        block_sizes = self.default(call, hardware)
        chip, bucket = hardware.chip, dict(self.bucket(call))
        for row in self.rows():
            if row["chip"] == chip and row["bucket"] == bucket:
                tuned = self._made(type(block_sizes), row["block_sizes"])
                return BlockSizeEntry(
                    kernel=self.kernel, block_sizes=tuned, source=_source(chip, row)
                )
        return BlockSizeEntry(kernel=self.kernel, block_sizes=block_sizes, source="default")

    def file(self) -> Path:
        """Return where the table's file is, or would be."""
        with importlib.resources.as_file(importlib.resources.files(self.package)) as folder:
            return folder / f"{self.kernel.replace('/', '.')}.json"

    def rows(self) -> tuple[dict[str, Any], ...]:
        """Return the entries of the file; none where there is no file.

        Raises:
            KernelError: As `entry` does.
        """
        return read_rows(self.file())

    def forced(self, block_sizes: BlockSizes) -> AbstractContextManager[None]:
        """Return a context in which every call takes `block_sizes`, as tuning needs."""
        entry = BlockSizeEntry(kernel=self.kernel, block_sizes=block_sizes, source="forced")
        return cast(AbstractContextManager[None], _forced((entry, *_forced.value)))

    def _made(self, kind: type[BlockSizes], sizes: Mapping[str, int]) -> BlockSizes:
        wanted = {field.name for field in attrs.fields(cast(Any, kind))}
        if set(sizes) != wanted or not all(type(size) is int for size in sizes.values()):
            raise _broken(self.file(), f"it has block_sizes {sizes}, not {sorted(wanted)}")
        return kind(**sizes)


def power_of_two(size: int) -> int:
    """Return the least power of two that is not below `size`, to put sizes into buckets.

    >>> power_of_two(3000)
    4096
    """
    return 1 << max(0, size - 1).bit_length()


def sizes_of(block_sizes: Any) -> dict[str, int]:
    """Return block sizes by name."""
    return attrs.asdict(block_sizes)


@functools.cache
def read_rows(file: Path) -> tuple[dict[str, Any], ...]:
    """Return the entries of a table's file, read once; none where there is no file.

    Raises:
        KernelError: The file is none that `axcore kernels tune` writes.
    """
    if not file.is_file():
        return ()
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["entries"]
        missing = sorted({name for row in rows for name in _FIELDS - set(row)})
    except (ValueError, KeyError, TypeError) as error:
        raise _broken(file, f"{type(error).__name__}: {error}") from error
    if missing:
        raise _broken(file, f"an entry lacks {', '.join(missing)}")
    return tuple(rows)


def write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a table's file in one move, and forget what was read of it."""
    text = json.dumps({"entries": list(rows)}, indent=2) + "\n"
    new = file.with_name(f"{file.name}.new")
    new.write_text(text, encoding="utf-8")
    # In one move, so that a run that starts meanwhile reads the old table or the new one.
    new.replace(file)
    read_rows.cache_clear()


def _source(chip: str, row: Mapping[str, Any]) -> str:
    bucket = ", ".join(f"{name}={value}" for name, value in row["bucket"].items())
    return f"tuned on {chip}, {row['date']}, for {bucket}"


def _broken(file: Path, why: str) -> KernelError:
    return KernelError(
        f"the table of block sizes {file.name} cannot be used: {why}.",
        where=str(file),
        hint="remove the file, or write it again on the chip by `axcore kernels tune`",
    )


@attrs.frozen
class KernelPlan:
    """Choices, and the block sizes that kernels took, in the order in which they were made."""

    choices: tuple[ChosenKernel, ...]
    block_sizes: tuple[BlockSizeEntry[Any], ...] = ()

    @classmethod
    def of(
        cls, choices: Iterable[ChosenKernel], block_sizes: Iterable[BlockSizeEntry[Any]] = ()
    ) -> "KernelPlan":
        """Return the plan of what was recorded, each call and each entry once."""
        return cls(
            tuple({one.call: one for one in choices}.values()), tuple(dict.fromkeys(block_sizes))
        )

    def never_run(self) -> tuple[Kernel, ...]:
        """Return the kernels that never ran on the chip, but for the core's portable ones."""
        return tuple(
            dict.fromkeys(
                one.kernel
                for one in self.choices
                if not one.kernel.is_validated_on(one.hardware)
                and not (one.kernel.is_portable and one.kernel.plugin == CORE)
            )
        )

    def __str__(self) -> str:
        lines = dict.fromkeys(str(one) for one in self.choices)
        return "\n".join([*lines, *(f"block sizes of {entry}" for entry in self.block_sizes)])

    def to_json(self) -> str:
        """Return the plan as JSON, with every call and every reason, and all block sizes."""
        return json.dumps([_as_dict(one, self.block_sizes) for one in self.choices], indent=2)


@attrs.frozen
class PlanRecording:
    """What was recorded so far."""

    choices: list[ChosenKernel] = attrs.field(factory=list)
    block_sizes: list[BlockSizeEntry[Any]] = attrs.field(factory=list)

    def plan(self) -> KernelPlan:
        """Return it as a plan."""
        return KernelPlan.of(self.choices, self.block_sizes)


# A context variable is right here: a recording changes no program, so jit must not trace again
# for it.
_recording: ContextVar[tuple[PlanRecording, ...]] = ContextVar("axcore_plan", default=())


def choose_and_record(call: Call, *, partner: str | None = None) -> ChosenKernel:
    """Return the choice for a call under the current policy, and report it to recordings.

    Raises:
        KernelError: As `choose` does.
    """
    choice = choose(call, current_policy(), partner=partner)
    for recording in _recording.get():
        recording.choices.append(choice)
    return choice


def choose_block_sizes(table: BlockSizeTable[BlockSizes], call: Call) -> BlockSizes:
    """Return a kernel's block sizes for a call under the current policy, and report them.

    Raises:
        KernelError: As `BlockSizeTable.entry` does.
    """
    entry = table.entry(call, current_policy().hardware)
    for recording in _recording.get():
        recording.block_sizes.append(entry)
    return entry.block_sizes


@contextlib.contextmanager
def recording_plan() -> Iterator[PlanRecording]:
    """Record the choices that are made, and the block sizes taken, while the context is open.

    A function that is compiled already chooses nothing when it runs again.
    """
    recording = PlanRecording()
    token = _recording.set((*_recording.get(), recording))
    try:
        yield recording
    finally:
        _recording.reset(token)


@contextlib.contextmanager
def recording_choices() -> Iterator[list[ChosenKernel]]:
    """Give a list of the choices that are made while the context is open, in their order."""
    with recording_plan() as recording:
        yield recording.choices


def _as_dict(choice: ChosenKernel, block_sizes: Iterable[BlockSizeEntry[Any]]) -> dict[str, object]:
    return {
        "op": choice.call.op,
        "call": str(choice.call),
        "hardware": choice.hardware.name,
        "kernel": choice.kernel.name,
        "plugin": choice.kernel.plugin,
        "why": choice.why,
        "otherwise": choice.otherwise,
        "block_sizes": [
            {"sizes": sizes_of(entry.block_sizes), "source": entry.source}
            for entry in block_sizes
            if entry.kernel == choice.kernel.key
        ],
        "rejected": {
            one.kernel.name: one.reason for one in choice.candidates if one.reason is not None
        },
    }
