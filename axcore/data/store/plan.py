"""The plan of a build: which part of the source each worker reads, and for whom.

It depends on the source alone, not on the number of workers, so that a build which was killed is
resumed, and two builds of one source are equal.
"""

import json
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import attrs

from axcore.config import from_json, to_json
from axcore.config.json_files import read_json_file
from axcore.data.sources.file_source import FileSource, FileSpan
from axcore.data.sources.files import NamedFile
from axcore.data.sources.remote import RemoteFile
from axcore.data.store.manifest import tokenizer_digest
from axcore.data.tokenizers.tokenizer import Tokenizer

PLAN = "plan.json"
# Parts enough for many cores, and small enough that a killed build loses little. A smaller part
# than a MiB would take longer to start than to build.
_NUM_PARTS = 64
_SMALLEST, _LARGEST = 1 << 20, 1 << 30

Part = tuple[FileSpan, ...]


@attrs.frozen
class Plan:
    """What is to be built.

    Attributes:
        source: The source's config, as JSON.
        source_digest: Of that, and of the names, sizes and times (or etags) of its files.
        tokenizer: The tokenizer's config, as JSON.
        tokenizer_digest: See `axcore.data.store.manifest.tokenizer_digest`.
        validation_fraction: The share of the documents that are held out.
        parts: What a worker reads at a time.
        sizes: Their bytes.
    """

    source: str
    source_digest: str
    tokenizer: str
    tokenizer_digest: str
    validation_fraction: float
    parts: tuple[Part, ...]
    sizes: tuple[int, ...]

    def to_json(self) -> str:
        """Return the plan as text; equal plans, equal texts."""
        # As lists, since JSON has no tuples, and equal plans must be equal texts.
        parts = [[_span_to_list(span) for span in part] for part in self.parts]
        own = attrs.asdict(self, recurse=False)
        return json.dumps({**own, "parts": parts}, indent=1) + "\n"

    def build_source(self) -> FileSource:
        """Return the source."""
        source: FileSource = from_json(self.source, set_in=PLAN).build()
        return source

    def build_tokenizer(self) -> Tokenizer:
        """Return the tokenizer."""
        tokenizer: Tokenizer = from_json(self.tokenizer, set_in=PLAN).build()
        return tokenizer


def make_plan(source: FileSource, tokenizer: Tokenizer.Config, validation_fraction: float) -> Plan:
    """Return the plan for a source, for which large files are read once.

    Raises:
        DataError: The source's or the tokenizer's files cannot be read.
    """
    files = source.files()
    size_of = {file: file.state()[0] for file in files}
    target = min(max(sum(size_of.values()) // _NUM_PARTS, _SMALLEST), _LARGEST)
    spans = [span for file in files for span in _spans(source, file, size_of[file], target)]
    parts = tuple(_parts(spans, size_of, target))
    return Plan(
        source=to_json(source.config),
        tokenizer=to_json(tokenizer),
        **plan_identity(source, tokenizer, validation_fraction),
        parts=parts,
        sizes=tuple(sum(_size(span, size_of) for span in part) for part in parts),
    )


def plan_identity(
    source: FileSource, tokenizer: Tokenizer.Config, validation_fraction: float
) -> dict[str, Any]:
    """Return what decides a plan; no file of the source is read.

    Raises:
        DataError: The source has no files, or the tokenizer's cannot be read.
    """
    return {
        "source_digest": _digest(source),
        "tokenizer_digest": tokenizer_digest(tokenizer),
        "validation_fraction": validation_fraction,
    }


def read_plan(folder: Path) -> Plan:
    """Return the plan of a build that was begun."""
    content: dict[str, Any] = read_json_file(folder / PLAN)
    parts = tuple(tuple(_span_of(*span) for span in part) for part in content.pop("parts"))
    return Plan(parts=parts, sizes=tuple(content.pop("sizes")), **content)


def source_size(source: FileSource) -> int:
    """Return the bytes of a source's files, as they are on the disk."""
    return sum(file.state()[0] for file in source.files())


def _digest(source: FileSource) -> str:
    digest = blake2b(to_json(source.config).encode(), digest_size=16)
    for file in source.files():
        # Indices that are read with a file decide what its documents are as much as the file does.
        states = [one.state() for one in (file, *source.read_with(file))]
        digest.update(json.dumps([file.name, *states]).encode())
    return digest.hexdigest()


def _spans(source: FileSource, file: NamedFile, size: int, target: int) -> Iterator[FileSpan]:
    """Yield a file in pieces; a remote one is not read to find where they might be."""
    return iter([FileSpan(file)]) if file.remote else source.spans(file, size, target)


def _parts(spans: Sequence[FileSpan], size_of: dict[NamedFile, int], target: int) -> Iterator[Part]:
    """Yield runs of spans of about `target` bytes."""
    part: list[FileSpan] = []
    size = 0
    for span in spans:
        part.append(span)
        size += _size(span, size_of)
        if size >= target:
            yield tuple(part)
            part, size = [], 0
    if part:
        yield tuple(part)


def _size(span: FileSpan, size_of: dict[NamedFile, int]) -> int:
    return (size_of[span.file] if span.end is None else span.end) - span.begin


def _span_to_list(span: FileSpan) -> list[Any]:
    place = [span.file.name, str(span.file.path), span.begin, span.end, span.first_record]
    return [*place, *([attrs.astuple(span.file.remote)] if span.file.remote else [])]


def _span_of(
    name: str,
    path: str,
    begin: int,
    end: int | None,
    first_record: int,
    remote: Sequence[Any] | None = None,
) -> FileSpan:
    file = NamedFile(name, Path(path), RemoteFile(*remote) if remote else None)
    return FileSpan(file, begin, end, first_record)
