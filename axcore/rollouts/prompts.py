"""Prompts: sources whose documents are prompts, with the fields that rewards compare answers with.

Any source serves. Here are those whose records are prompts already: files of JSON lines, and two
tasks whose answers are computed.
"""

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from random import Random

from axcore.config import REQUIRED, PositiveInt, config
from axcore.config.json_files import parse_json
from axcore.data import Source
from axcore.data.document import Document
from axcore.data.sources.files import NamedFile, open_decompressed
from axcore.errors import ConfigError, DataError
from axcore.rewards import ANSWER

PROMPT, MESSAGES = "prompt", "messages"
"""The fields of a line, one of which it has: a text, or a conversation for the chat template."""


class PromptFiles(Source):
    """A file of JSON lines, each with a `prompt` or `messages`, and fields for rewards.

    A document's name is `file:line`, so that lines added at the end leave the split of the others
    as it was.
    """

    folder_fields = ("path",)

    @config
    class Config(Source.Config):
        """Which file.

        Attributes:
            path: The file; `.gz` and `.zst` are decompressed.
        """

        path: str = REQUIRED

    config: Config

    def documents(self) -> Iterator[Document]:
        """Yield the prompts.

        Raises:
            DataError: The file cannot be read, or a line is not a prompt; it names the line.
        """
        path = Path(self.config.path).expanduser()
        num_prompts = 0
        with open_decompressed(NamedFile(path.name, path)) as lines:
            for number, raw in enumerate(lines, start=1):
                if raw.strip():
                    yield _document(f"{path.name}:{number}", raw)
                    num_prompts += 1
        if not num_prompts:
            raise DataError(
                "the file has no prompt",
                where=str(path),
                hint='give it lines such as {"prompt": "2+2=", "answer": "4"}',
            )

    def describe(self) -> str:
        """Name the file."""
        return f"prompts of {self.config.path}"


def _document(name: str, raw: bytes) -> Document:
    try:
        record = parse_json(raw)
    except ValueError as error:
        raise DataError(f"the line is not JSON: {error}", where=name) from error
    if not isinstance(record, dict):
        raise _no_prompt(name, f"is {type(record).__name__}")
    fields = dict(record)
    text = fields.pop(PROMPT, None)
    if isinstance(text, str) and text and MESSAGES not in fields:
        return Document(name, text, fields=fields)
    messages = fields.get(MESSAGES)
    if text is None and isinstance(messages, list) and messages:
        return Document(name, "", fields=fields)
    raise _no_prompt(name, f"has the fields {', '.join(record) or 'none'}")


def _no_prompt(name: str, what: str) -> DataError:
    return DataError(
        f"the line {what}; expected an object with a text `prompt` or a list `messages`, not both",
        where=name,
        hint='write {"prompt": "2+2=", "answer": "4"}, or {"messages": [{"role": "user", ...}]}',
    )


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
