"""`TaskRun`: asks a model what a task asks, keeps every reply, and reports metrics.

Replies are kept line by line, so that an evaluation that was killed is resumed.
"""

import hashlib
import json
import os
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import attrs

from axcore.config import to_dict
from axcore.config.json_files import parse_json
from axcore.errors import DataError
from axcore.evaluation.questions import LanguageModel, PendingReply, Question
from axcore.evaluation.samples import BadSample, Sample
from axcore.evaluation.scored_task import Estimate, ScoredSample, ScoredTask
from axcore.whole_files import read_regular, write_whole

RESTART = "give another --output, or --restart to ask everything again"


class KeptAnswers:
    """A line of JSON for each sample, in their order.

    Args:
        path: The file; made with the first line. A last line that was cut short is dropped.

    Raises:
        DataError: A line is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines: dict[int, dict[str, Any]] = {}
        whole = self._read() if path.exists() else b""
        self._file: IO[bytes] | None = None
        if path.exists():
            # What a killed process left of a line, which the next would be appended to.
            os.truncate(path, len(whole))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def find(self, index: int, asked: str) -> Mapping[str, Any] | None:
        """Return the line of a sample, if it was answered.

        Args:
            index: Of the sample.
            asked: The digest of what is asked of it now.

        Raises:
            DataError: Something else was asked of it then.
        """
        line = self.lines.get(index)
        if line is not None and line.get("asked") != asked:
            raise DataError(
                f"sample {index} differs from the one that was answered",
                where=str(self._path),
                hint=RESTART,
            )
        return line

    def add(self, line: Mapping[str, Any]) -> None:
        """Append the line of a sample and hand it to the operating system."""
        if self._file is None:
            self._file = self._path.open("ab")
        self._file.write(json.dumps(line, ensure_ascii=False).encode("utf-8") + b"\n")
        # Not fsync: after a power loss the last samples are asked again, which costs less.
        self._file.flush()

    def _read(self) -> bytes:
        data = read_regular(self._path)
        whole = data[: data.rfind(b"\n") + 1]
        for number, text in enumerate(whole.splitlines(), start=1):
            try:
                line = parse_json(text)
                self.lines[int(line["index"])] = line
            except (ValueError, KeyError, TypeError):
                raise DataError(
                    "the line is not a sample that was kept",
                    where=f"{self._path}:{number}",
                    hint=RESTART,
                ) from None
        return whole


def digest_of(questions: Sequence[Question]) -> str:
    """Return what distinguishes questions from others."""
    asked = [{"kind": type(one).__name__, **attrs.asdict(one)} for one in questions]
    text = json.dumps(asked, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


_QUESTIONS_AHEAD = 256
"""Questions that wait for the model at once."""

ANSWER_S = 600.0
"""Seconds after which an answer is given up."""


@attrs.frozen(kw_only=True)
class TaskResult:
    """What a task found.

    Args:
        task: Its name.
        metrics: By name.
        num_samples: Samples that count.
        num_bad: Malformed ones, which do not.
        num_unanswered: Samples without an answer in time, which do not count either.
        num_cut: Samples of which the model read only a part.
        num_kept: Samples that an earlier evaluation had answered.
        num_shots: Solved examples before each question.
        limit: Only so many samples were taken.
        seconds: That it took.
    """

    task: str
    metrics: Mapping[str, Estimate]
    num_samples: int
    num_bad: int
    num_unanswered: int
    num_cut: int
    num_kept: int
    num_shots: int
    limit: int | None
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        found = attrs.asdict(self, recurse=False)
        found["metrics"] = {
            name: {"value": one.value, "standard_error": one.standard_error}
            for name, one in self.metrics.items()
        }
        better = {name: one.is_better_higher for name, one in self.metrics.items()}
        return {**found, "is_better_higher": better}


@attrs.frozen
class _Asked:
    """A sample, and its questions while they are answered; or what an evaluation before kept."""

    index: int
    sample: Sample
    questions: tuple[Question, ...]
    digest: str
    pending: tuple[PendingReply, ...] = ()
    kept: Mapping[str, Any] | None = None


class TaskRun:
    """One task, asked of one model.

    Args:
        name: Of the task.
        cfg: The task.
        directory: Where results are kept.
        timeout_s: Seconds after which an answer is given up.
    """

    def __init__(
        self, name: str, cfg: ScoredTask.Config, directory: Path, *, timeout_s: float = ANSWER_S
    ) -> None:
        self.name, self.config = name, cfg
        self._directory, self._timeout_s = directory, timeout_s
        self._task: ScoredTask = cfg.build()
        self._bad: list[BadSample] = []
        self._unanswered: list[BadSample] = []

    def run(self, model: LanguageModel) -> TaskResult:
        """Ask everything that is not answered yet, and return the metrics.

        Raises:
            DataError: The task has no sample that can be asked, or no answer came in time; or a
                sample is another one than that which was answered before.
        """
        began = time.monotonic()
        scored: list[ScoredSample] = []
        num_cut = num_kept = 0
        with KeptAnswers(self._file("samples.jsonl")) as kept:
            for asked in self._asked_ahead(model, kept):
                line = asked.kept or self._answered(asked)
                if line is None:
                    continue
                if asked.kept is None:
                    kept.add(line)
                num_kept += asked.kept is not None
                num_cut += any(reply["num_cut"] for reply in line["replies"])
                source = self._task.source_of(asked.sample)
                scored.append(ScoredSample(measures=line["measures"], source=source))
        self._report_left_out()
        if not scored:
            raise self._nothing()
        result = TaskResult(
            task=self.name,
            metrics=self._task.metrics(scored),
            num_samples=len(scored),
            num_bad=len(self._bad),
            num_unanswered=len(self._unanswered),
            num_cut=num_cut,
            num_kept=num_kept,
            num_shots=self.config.num_shots,
            limit=self.config.limit,
            seconds=time.monotonic() - began,
        )
        found = {**result.as_json(), "config": to_dict(self.config)}
        write_whole(self._file("json"), json.dumps(found, indent=1) + "\n")
        return result

    def _file(self, ending: str) -> Path:
        return self._directory / f"{self.name}.{ending}"

    def _asked_ahead(self, model: LanguageModel, kept: KeptAnswers) -> Iterator[_Asked]:
        """Yield samples in order; many are asked before the first is waited for."""
        waiting: deque[_Asked] = deque()
        num_waiting = 0
        for asked in self._asked(model, kept):
            waiting.append(asked)
            num_waiting += len(asked.pending)
            while num_waiting > _QUESTIONS_AHEAD:
                num_waiting -= len(waiting[0].pending)
                yield waiting.popleft()
        yield from waiting

    def _asked(self, model: LanguageModel, kept: KeptAnswers) -> Iterator[_Asked]:
        """Yield each sample, asked unless it was answered; malformed ones are quarantined."""
        solved = self._task.solved()
        for index, sample in enumerate(self._task.samples()):
            if isinstance(sample, BadSample):
                self._bad.append(sample)
                continue
            try:
                questions = self._task.questions(sample, self._task.before(sample, solved))
            except DataError as error:
                self._bad.append(BadSample(where=sample.where, reason=error.what))
                continue
            digest = digest_of(questions)
            found = kept.find(index, digest)
            pending = () if found else tuple(model.ask(one) for one in questions)
            yield _Asked(index, sample, questions, digest, pending, found)

    def _answered(self, asked: _Asked) -> dict[str, Any] | None:
        """Return the line of a sample; None where an answer did not come in time."""
        try:
            replies = [one.reply(self._timeout_s) for one in asked.pending]
        except TimeoutError:
            reason = f"no answer came within {self._timeout_s:g} s"
            self._unanswered.append(BadSample(where=asked.sample.where, reason=reason))
            return None
        return {
            "index": asked.index,
            "where": asked.sample.where,
            "asked": asked.digest,
            "questions": [attrs.asdict(one) for one in asked.questions],
            "replies": [attrs.asdict(one) for one in replies],
            # Kept too: a measure may have run a program, which is not run again.
            "measures": dict(self._task.measures(asked.sample, replies)),
        }

    def _report_left_out(self) -> None:
        """Write which samples do not count, and warn of them."""
        left_out = [*self._bad, *self._unanswered]
        file = self._file("bad.jsonl")
        if not left_out:
            file.unlink(missing_ok=True)
            return
        write_whole(
            file, "".join(json.dumps(attrs.asdict(one)) + "\n" for one in left_out).encode()
        )
        first = left_out[0]
        warnings.warn(
            f"{self.name}: {len(left_out)} samples do not count, listed in {file}; the first is "
            f"{first.where}: {first.reason}",
            stacklevel=3,
        )

    def _nothing(self) -> DataError:
        left_out = [*self._bad, *self._unanswered]
        if not left_out:
            return DataError("the task has no samples", where=self.name)
        first = left_out[0]
        return DataError(
            f"none of {len(left_out)} samples counts; the first is {first.where}: {first.reason}",
            where=self.name,
            hint=f"{self._file('bad.jsonl')} lists them",
        )
