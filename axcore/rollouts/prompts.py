"""Prompts: sources whose documents are prompts, with the fields that rewards compare answers with.

Any source serves. Here are those whose records are prompts already: files of JSON lines, and two
tasks whose answers are computed.
"""

from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from random import Random

import attrs
import numpy as np

from axcore.config import REQUIRED, Fraction, PositiveInt, config
from axcore.data import BadRecord, FileSource, FileSpan, NamedFile, Source, Transform
from axcore.data.document import Document
from axcore.data.prompts import PROMPT, PROMPT_TOKENS, encode_prompt_record
from axcore.data.sources.file_source import bad_fraction
from axcore.data.sources.files import OnBad
from axcore.data.sources.json_lines import read_json_lines
from axcore.data.transforms import TransformTools
from axcore.errors import ConfigError, DataError
from axcore.rewards import ANSWER


class EncodePrompt(Transform):
    """Makes a document of a record that has a prompt: its tokens, and its text for rewards."""

    @config
    class Config(Transform.Config):
        """Has no settings."""

    replaces_text = True

    def apply(self, document: Document, tools: TransformTools) -> Document:
        """Return the prompt; its other fields stay, for rewards.

        Raises:
            DataError: The record has no prompt, or one that the model cannot read.
        """
        try:
            found = encode_prompt_record(document.fields, tools.tokenizer)
        except DataError as error:
            # What is wrong within a record knows no file.
            file, _, number = document.name.rpartition(":")
            raise DataError(
                f"{file}, line {number}: {error.what}", where=document.name, hint=_HINT
            ) from error
        others = {
            name: one
            for name, one in document.fields.items()
            if name not in (PROMPT, PROMPT_TOKENS)
        }
        tokens = np.asarray(found.tokens, np.int32)
        return attrs.evolve(document, text=found.text, tokens=tokens, fields=others)


_HINT = (
    'write {"prompt": "2+2=", "answer": "4"}, or {"messages": [{"role": "user", ...}]}; '
    "--set data.prompts.on_bad=skip leaves such lines out"
)


class PromptFiles(FileSource):
    """A file of JSON lines, each with a `prompt`, `messages` or `prompt_tokens`.

    Its other fields are for rewards. A document's name is `file:line`, so that lines added at the
    end leave the split of the others as it was.
    """

    @config
    class Config(FileSource.Config):
        """Which file.

        Attributes:
            path: The file; of gzip and zstd it is decompressed.
            on_bad: Whether a line that is not a prompt is an error, or is left out and counted in
                a warning.
            max_bad_fraction: The share of the lines that may be left out; None for any share.
        """

        path: str = REQUIRED
        on_bad: OnBad = "error"
        max_bad_fraction: Fraction | None = None

    config: Config
    folder_fields = ("path",)
    unit = "lines"

    @cached_property
    def transforms(self) -> tuple[Transform, ...]:
        """What makes prompts of lines, and then what changes those."""
        return (EncodePrompt.Config().build(), *super().transforms)

    def files(self) -> list[NamedFile]:
        """Return the file."""
        path = Path(self.config.path).expanduser()
        return [NamedFile(path.name, path)]

    def records(self, span: FileSpan) -> Iterator[Document | BadRecord]:
        """Yield a document for each line, of which `transforms` make the prompt.

        Raises:
            DataError: The file cannot be read, or has no line.
        """
        is_empty = True
        for line in read_json_lines(span.file.path):
            is_empty = False
            try:
                fields = line.parsed()
            except DataError as error:
                yield BadRecord(span.file.name, line.offset, error)
                continue
            text = fields.get(PROMPT)
            name = f"{span.file.name}:{line.number}"
            shown = text if isinstance(text, str) else ""
            yield Document(name, shown, None, line.offset, fields)
        if is_empty:
            raise DataError(
                "the file has no prompt",
                where=str(span.file.path),
                hint='give it lines such as {"prompt": "2+2=", "answer": "4"}',
            )

    @property
    def max_bad_fraction(self) -> float:
        """The share of the lines that may be left out."""
        return bad_fraction(self.config.on_bad, self.config.max_bad_fraction)

    def describe(self) -> str:
        """Name the file."""
        return f"prompts of {self.config.path}"


class ComputedPrompts(Source):
    """Prompts with computed answers; the same ones for each seed, without repetition."""

    @config
    class Config(Source.Config):
        """How many.

        Attributes:
            num_prompts: How many.
            seed: Decides which.
        """

        num_prompts: PositiveInt = 4096
        seed: int = 0

    config: Config

    @abstractmethod
    def one(self, random: Random) -> tuple[str, str]:
        """Return a random prompt and its answer."""

    def documents(self) -> Iterator[Document]:
        """Yield the prompts.

        Raises:
            DataError: There are fewer of the kind.
        """
        cfg, random = self.config, Random(self.config.seed)
        found: dict[str, str] = {}
        # A bound: where nearly all have been found, another one takes ever longer.
        for _ in range(100 * cfg.num_prompts):
            if len(found) == cfg.num_prompts:
                break
            prompt, answer = self.one(random)
            found.setdefault(prompt, answer)
        else:
            raise DataError(
                f"of {cfg.num_prompts} prompts only {len(found)} were found",
                where="data.prompts.num_prompts",
                hint=f"--set data.prompts.num_prompts={len(found) // 2}",
            )
        for prompt, answer in found.items():
            # By the prompt: the same one is held out whatever the seed.
            yield Document(prompt, prompt, fields={ANSWER: answer})


class ReversedStrings(ComputedPrompts):
    """`abcd=`, to be answered with `dcba`."""

    @config
    class Config(ComputedPrompts.Config):
        """Which strings.

        Attributes:
            min_length: Letters of the shortest.
            max_length: Letters of the longest.
            alphabet: The letters.
        """

        min_length: PositiveInt = 2
        max_length: PositiveInt = 4
        alphabet: str = "abcdefgh"

    config: Config

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        if cfg.min_length > cfg.max_length or not cfg.alphabet:
            raise ConfigError(
                f"min_length is {cfg.min_length}, max_length {cfg.max_length}, and the alphabet "
                f"has {len(cfg.alphabet)} letters",
                where="data.prompts",
                hint="set min_length to max_length or less, and alphabet to one letter or more",
            )

    def one(self, random: Random) -> tuple[str, str]:
        """Return a random string, and the string reversed."""
        cfg = self.config
        length = random.randint(cfg.min_length, cfg.max_length)
        text = "".join(random.choice(cfg.alphabet) for _ in range(length))
        return f"{text}=", text[::-1]

    def describe(self) -> str:
        """Say which strings."""
        cfg = self.config
        return f"strings of {cfg.min_length} to {cfg.max_length} of {cfg.alphabet!r}, to reverse"


class Arithmetic(ComputedPrompts):
    """`12+34=`, to be answered with `46`."""

    @config
    class Config(ComputedPrompts.Config):
        """Which numbers.

        Attributes:
            max_number: The largest.
        """

        max_number: PositiveInt = 99

    config: Config

    def one(self, random: Random) -> tuple[str, str]:
        """Return a random sum, and what it is."""
        first, second = (random.randint(0, self.config.max_number) for _ in range(2))
        return f"{first}+{second}=", str(first + second)

    def describe(self) -> str:
        """Say which numbers."""
        return f"sums of two numbers up to {self.config.max_number}"
