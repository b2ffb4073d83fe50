"""Tasks of the text of Python's standard library: no download, and real text."""

import ast
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from axcore.config import PositiveInt, config
from axcore.data.sources.text_files import library_files
from axcore.evaluation.multiple_choice import MultipleChoice
from axcore.evaluation.perplexity import Perplexity
from axcore.evaluation.sample import Sample, SampleSource
from axcore.evaluation.written_answer import WrittenAnswer

NUM_CHOICES = 4


class _Module(NamedTuple):
    """A file of the library that can be parsed."""

    name: str
    text: str
    tree: ast.Module


def _modules(stride: int) -> Iterator[_Module]:
    """Yields one of every so many files."""
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
        """Yields the files that have text."""
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
        """Yields functions whose docstring has a first line."""
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
        """Yields at most one sample of a file, of an import that names what it takes."""
        draws = np.random.default_rng(0)
        for module in _modules(self.config.stride):
            names = sorted(
                {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
            )
            uses = [node for node in ast.walk(module.tree) if _is_returned(node)]
            if len(names) > NUM_CHOICES and uses:
                use: Any = uses[int(draws.integers(len(uses)))]
                yield self._sample(module, use, names, draws)

    def _sample(self, module: _Module, use: Any, names: list[str], draws: Any) -> Sample:
        name = use.value.id
        lines = module.text.splitlines(keepends=True)
        before = "".join(lines[: use.lineno - 1]) + " " * use.col_offset + "return"
        others = [one for one in names if one != name]
        wrong = [others[i] for i in draws.choice(len(others), NUM_CHOICES - 1, replace=False)]
        place = int(draws.integers(NUM_CHOICES))
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
    """Returns the task of predicting the library's files, by package."""
    return Perplexity.Config(samples=LibraryText.Config(), source="package")


def library_signatures() -> WrittenAnswer.Config:
    """Returns the task of writing a signature for the first line of a docstring."""
    return WrittenAnswer.Config(
        samples=LibrarySignatures.Config(),
        prompt="# {docstring}\ndef",
        answer="{signature}",
        max_tokens=48,
        stop=("\n", ":\n"),
        limit=200,
    )


def library_names() -> MultipleChoice.Config:
    """Returns the task of choosing the name that a function returns."""
    return MultipleChoice.Config(samples=LibraryNames.Config())
