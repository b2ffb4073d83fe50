"""Public benchmarks, from files as their publishers lay them out: nothing is downloaded.

Questions follow the wording of lm-eval's tasks; docs/evaluation.md says what differs.
"""

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from axcore.config import REQUIRED, config
from axcore.errors import DataError
from axcore.evaluation.code_execution import CodeExecution
from axcore.evaluation.multiple_choice import MultipleChoice
from axcore.evaluation.sample import BadSample, Sample, SampleSource
from axcore.evaluation.sample_file import SampleFile
from axcore.evaluation.written_answer import WrittenAnswer

_LETTERS = "ABCDE"


class PublishedFile(SampleSource):
    """Samples of a file, each made of what a record of it has."""

    @config
    class Config(SampleSource.Config):
        """Describes a `PublishedFile`.

        Args:
            path: The file.
        """

        path: str = REQUIRED

    columns: tuple[str, ...] = ()

    def samples(self) -> Iterator[Sample | BadSample]:
        """Yields the samples of the file."""
        file = SampleFile.Config(path=self.config.path, columns=self.columns).build()
        for one in file.samples():
            yield one if isinstance(one, BadSample) else self._sample(one)

    @abstractmethod
    def fields(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns what a sample has of a record; a KeyError, TypeError or ValueError: malformed."""

    def _sample(self, record: Sample) -> Sample | BadSample:
        try:
            return Sample(where=record.where, fields=self.fields(record.fields))
        except KeyError as error:
            return BadSample(where=record.where, reason=f"it has no {error.args[0]!r}")
        except (TypeError, ValueError, AttributeError, DataError) as error:
            return BadSample(where=record.where, reason=f"it is not as published: {error}")


class HellaSwagFile(PublishedFile):
    """`hellaswag_val.jsonl` or the Parquet of it: `activity_label`, `ctx_a`, `ctx_b`, `endings`."""

    def fields(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the context, without marks, and the endings."""
        context = f"{record['ctx_a']} {record['ctx_b'].capitalize()}"
        prompt = _without_marks(f"{record['activity_label']}: {context}")
        choices = [_without_marks(one) for one in record["endings"]]
        return {"prompt": prompt, "choices": choices, "answer": int(record["label"])}


class ArcFile(PublishedFile):
    """ARC's JSON lines, with a `stem`, or the Parquet of them, with `choices.text`."""

    def fields(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the question and its choices."""
        question = record["question"]
        if isinstance(question, dict):
            listed = question["choices"]
            labels, choices = [one["label"] for one in listed], [one["text"] for one in listed]
            question = question["stem"]
        else:
            labels, choices = record["choices"]["label"], record["choices"]["text"]
        answer = list(labels).index(record["answerKey"])
        prompt = f"Question: {question}\nAnswer:"
        return {"prompt": prompt, "choices": choices, "answer": answer}


class MmluFile(PublishedFile):
    """A subject's `test.csv`, without names of columns, or Parquet with `choices`."""

    columns = ("question", "A", "B", "C", "D", "answer")

    def fields(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the question with its choices, which are then chosen by letter."""
        choices = record["choices"] if "choices" in record else [record[one] for one in "ABCD"]
        answer = record["answer"]
        number = _LETTERS.index(answer) if isinstance(answer, str) else int(answer)
        letters = _LETTERS[: len(choices)]
        listed = "".join(f"{a}. {b}\n" for a, b in zip(letters, choices, strict=True))
        prompt = f"{record['question'].strip()}\n{listed}Answer:"
        return {"prompt": prompt, "choices": list(letters), "answer": number}


class GsmFile(PublishedFile):
    """GSM8K's JSON lines or Parquet: `question`, and `answer` with `####` before the number."""

    def fields(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the question, the number and its derivation."""
        solution = record["answer"]
        number = solution.rpartition("####")[2].strip()
        prompt = f"Question: {record['question']}\nAnswer:"
        return {"prompt": prompt, "answer": number, "solution": solution}


def hellaswag() -> MultipleChoice.Config:
    """Returns HellaSwag: which ending follows."""
    return MultipleChoice.Config(samples=HellaSwagFile.Config())


def arc() -> MultipleChoice.Config:
    """Returns ARC: questions of school science."""
    return MultipleChoice.Config(samples=ArcFile.Config())


def mmlu() -> MultipleChoice.Config:
    """Returns a subject of MMLU."""
    return MultipleChoice.Config(samples=MmluFile.Config())


def gsm8k() -> WrittenAnswer.Config:
    """Returns GSM8K; the last number that is written counts."""
    return WrittenAnswer.Config(
        samples=GsmFile.Config(),
        derivation="{solution}",
        max_tokens=256,
        stop=("Question:", "</s>", "<|im_end|>"),
        pattern=r"-?[$0-9.,]{2,}|-?[0-9]+",
        takes_last=True,
        ignored=(",", r"\$", r"\.$"),
    )


def humaneval() -> CodeExecution.Config:
    """Returns HumanEval, as `HumanEval.jsonl.gz` has it."""
    return CodeExecution.Config(samples=SampleFile.Config())


def _without_marks(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")
