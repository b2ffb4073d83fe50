"""Tasks with public data: benchmarks of local files, and questions about Python's library."""

import ast
import re
import sysconfig
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from axcore.config import REQUIRED, PositiveInt, config
from axcore.data.sources.text_files import library_files
from axcore.errors import DataError
from axcore.evaluation.samples import BadSample, Sample, SampleFile, SampleSource
from axcore.evaluation.tasks import CodeExecution, MultipleChoice, Perplexity, WrittenAnswer

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
        """Yield the samples of the file."""
        file = SampleFile.Config(path=self.config.path, columns=self.columns).build()
        for one in file.samples():
            yield one if isinstance(one, BadSample) else self._sample(one)

    @abstractmethod
    def fields(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a sample has of a record; a KeyError, TypeError or ValueError: malformed."""

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
        """Return the context, without marks, and the endings."""
        context = f"{record['ctx_a']} {record['ctx_b'].capitalize()}"
        prompt = _without_marks(f"{record['activity_label']}: {context}")
        choices = [_without_marks(one) for one in record["endings"]]
        return {"prompt": prompt, "choices": choices, "answer": int(record["label"])}


class ArcFile(PublishedFile):
    """ARC's JSON lines, with a `stem`, or the Parquet of them, with `choices.text`."""

    def fields(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the question and its choices."""
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
        """Return the question with its choices, which are then chosen by letter."""
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
        """Return the question, the number and its derivation."""
        solution = record["answer"]
        number = solution.rpartition("####")[2].strip()
        prompt = f"Question: {record['question']}\nAnswer:"
        return {"prompt": prompt, "answer": number, "solution": solution}


def hellaswag() -> MultipleChoice.Config:
    """Return HellaSwag: which ending follows."""
    return MultipleChoice.Config(samples=HellaSwagFile.Config())


def arc() -> MultipleChoice.Config:
    """Return ARC: questions of school science."""
    return MultipleChoice.Config(samples=ArcFile.Config())


def mmlu() -> MultipleChoice.Config:
    """Return a subject of MMLU."""
    return MultipleChoice.Config(samples=MmluFile.Config())


def gsm8k() -> WrittenAnswer.Config:
    """Return GSM8K; the last number that is written counts."""
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
    """Return HumanEval, as `HumanEval.jsonl.gz` has it."""
    return CodeExecution.Config(samples=SampleFile.Config())


def _without_marks(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


_NUM_CHOICES = 4


class _Module(NamedTuple):
    """A file of the library that can be parsed."""

    name: str
    text: str
    tree: ast.Module


def _modules(stride: int) -> Iterator[_Module]:
    """Yield one of every so many files."""
    for file in library_files(sysconfig.get_path("stdlib"))[::stride]:
        try:
            text = Path(file.path).read_text(encoding="utf-8")
            with warnings.catch_warnings(action="ignore"):  # what is wrong with it is not ours
                tree = ast.parse(text)
        except (UnicodeDecodeError, SyntaxError):  # the library has such files on purpose
            continue
        yield _Module(file.name, text, tree)


class LibraryText(SampleSource):
    """Beginnings of files, with the values `text`, `package` and `name`."""

    @config
    class Config(SampleSource.Config):
        """Describes a `LibraryText`.

        Args:
            num_characters: Of each file at most.
            stride: One of every so many files is taken.
        """

        num_characters: PositiveInt = 2000
        stride: PositiveInt = 10

    config: Config

    def samples(self) -> Iterator[Sample]:
        """Yield the files that have text."""
        for module in _modules(self.config.stride):
            if module.text and not module.name.startswith("config-"):  # of one platform
                package = module.name.split("/")[0] if "/" in module.name else "modules"
                text = module.text[: self.config.num_characters]
                fields = {"text": text, "package": package, "name": module.name}
                yield Sample(where=module.name, fields=fields)


class LibrarySignatures(SampleSource):
    """Documented functions, with the values `docstring`, `signature` and `name`."""

    @config
    class Config(SampleSource.Config):
        """Describes `LibrarySignatures`.

        Args:
            stride: One of every so many files is taken.
        """

        stride: PositiveInt = 10

    config: Config

    def samples(self) -> Iterator[Sample]:
        """Yield functions whose docstring has a first line."""
        for module in _modules(self.config.stride):
            for node in ast.walk(module.tree):
                if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
                    fields = {
                        "docstring": text.split("\n")[0],
                        "signature": f"{node.name}({ast.unparse(node.args)})",
                        "name": node.name,
                    }
                    yield Sample(where=f"{module.name}:{node.lineno}", fields=fields)


class LibraryNames(SampleSource):
    """Lines that end in a name, with the values `prompt`, `choices` and `answer`.

    The wrong choices are names that are in the same file.
    """

    @config
    class Config(SampleSource.Config):
        """Describes `LibraryNames`.

        Args:
            stride: One of every so many files is taken.
            num_before: Characters before the name at most.
        """

        stride: PositiveInt = 10
        num_before: PositiveInt = 100

    config: Config

    def samples(self) -> Iterator[Sample]:
        """Yield at most one sample of a file, of an import that names what it takes."""
        draws = np.random.default_rng(0)
        for module in _modules(self.config.stride):
            names = sorted(
                {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
            )
            uses = [node for node in ast.walk(module.tree) if _is_returned(node)]
            if len(names) > _NUM_CHOICES and uses:
                use: Any = uses[int(draws.integers(len(uses)))]
                yield self._sample(module, use, names, draws)

    def _sample(self, module: _Module, use: Any, names: list[str], draws: Any) -> Sample:
        name = use.value.id
        lines = module.text.splitlines(keepends=True)
        before = "".join(lines[: use.lineno - 1]) + " " * use.col_offset + "return"
        others = [one for one in names if one != name]
        wrong = [others[i] for i in draws.choice(len(others), _NUM_CHOICES - 1, replace=False)]
        place = int(draws.integers(_NUM_CHOICES))
        fields = {
            "prompt": before[-self.config.num_before :],
            "choices": [*wrong[:place], name, *wrong[place:]],
            "answer": place,
        }
        return Sample(where=f"{module.name}:{use.lineno}", fields=fields)


def _is_returned(node: ast.AST) -> bool:
    """Whether a statement returns the value of a name."""
    return isinstance(node, ast.Return) and isinstance(node.value, ast.Name)


def library_text() -> Perplexity.Config:
    """Return the task of predicting the library's files, by package."""
    return Perplexity.Config(samples=LibraryText.Config(), source="package")


def library_signatures() -> WrittenAnswer.Config:
    """Return the task of writing a signature for the first line of a docstring."""
    return WrittenAnswer.Config(
        samples=LibrarySignatures.Config(),
        prompt="# {docstring}\ndef",
        answer="{signature}",
        max_tokens=48,
        stop=("\n", ":\n"),
        limit=200,
    )


def library_names() -> MultipleChoice.Config:
    """Return the task of choosing the name that a function returns."""
    return MultipleChoice.Config(samples=LibraryNames.Config())
