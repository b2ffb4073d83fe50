"""`PromptFile`: the prompts in a file of JSON lines, as the tokens that a model continues."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from axcore.batch_inference.inputs import PromptInputs
from axcore.data import Tokenizer
from axcore.data.prompts import PROMPT_FIELDS, encode_prompt_record
from axcore.data.sources.json_lines import JsonLine, read_json_lines
from axcore.errors import DataError
from axcore.inference import EncoderInput

ANSWER_FIELDS = ("index", "samples", "error")
"""Fields that a line of answers has besides those of its prompt."""

_HINT = "correct or remove the line; --on-error skip answers the others"


@attrs.frozen(kw_only=True)
class Prompt:
    """A line of the file.

    Attributes:
        index: Of the line among those that are not empty, from 0.
        where: File and number of the line.
        fields: What it holds; without those that answers have where it cannot be answered.
        tokens: What the model continues.
        inputs: Pictures and other inputs that it is about.
        error: Why it cannot be answered; None where it can.
    """

    index: int
    where: str
    fields: Mapping[str, Any]
    tokens: tuple[int, ...] = ()
    inputs: tuple[EncoderInput, ...] = ()
    error: DataError | None = None


@attrs.frozen(kw_only=True)
class PromptSummary:
    """What the lines of a file are.

    Attributes:
        num_prompts: Lines that are not empty.
        num_bad: Those of them that cannot be answered.
        first_error: Why the first of these cannot.
        num_shortened: Prompts that leave less than `max_tokens` of the model's length.
        text_digest: Of the bytes of all lines.
        token_digest: Of the tokens of all prompts, as tokenizer and chat template make them, and of
            their inputs.
    """

    num_prompts: int
    num_bad: int
    first_error: DataError | None
    num_shortened: int
    text_digest: str
    token_digest: str


class PromptFile:
    """Reads prompts, the first one first, each time that it is iterated over.

    Args:
        path: JSON lines; decompressed where they are gzip or zstd. Empty lines are skipped.
        tokenizer: Makes their tokens, and has the chat template of conversations.
        max_length: Tokens of the longest prompt and answer together.
        parses_special: Whether special tokens that a text writes out, as `<|im_start|>`, are these
            tokens; otherwise they are characters.
        inputs: Reads conversations of a model that reads more than text.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        parses_special: bool = True,
        inputs: PromptInputs | None = None,
    ) -> None:
        self.path, self._inputs = path, inputs
        self._tokenizer, self._max_length = tokenizer, max_length
        self._parses_special = parses_special

    @staticmethod
    def check_is_readable(path: Path) -> None:
        """Check what can be known of a file without a tokenizer: that a line can be read.

        Raises:
            DataError: It cannot be read, or holds no line.
        """
        if not path.exists():
            raise DataError(
                "there is no such file", where=str(path), hint="name a file of JSON lines"
            )
        if next(read_json_lines(path), None) is None:
            raise _empty(path)

    def __iter__(self) -> Iterator[Prompt]:
        """Yield a prompt for each line; one that cannot be answered says why.

        Raises:
            DataError: The file cannot be read, or not to its end.
        """
        for index, line in enumerate(read_json_lines(self.path)):
            yield self._prompt(index, line)

    def summary(self, max_tokens: int) -> PromptSummary:
        """Read all prompts once.

        Args:
            max_tokens: Tokens of an answer at most, where the model's length leaves as many.

        Raises:
            DataError: There is no prompt, or the file cannot be read.
        """
        texts, tokens = (hashlib.blake2b(digest_size=16) for _ in range(2))
        num_prompts = num_bad = num_shortened = 0
        first_error = None
        for index, line in enumerate(read_json_lines(self.path)):
            prompt = self._prompt(index, line)
            num_prompts += 1
            # Without its end: an editor that adds one to the last line changes no prompt.
            texts.update(line.raw.rstrip(b"\r\n") + b"\n")
            tokens.update(np.asarray([len(prompt.tokens), *prompt.tokens], "<i8").tobytes())
            tokens.update(b"".join(one.digest for one in prompt.inputs))
            if prompt.error is not None:
                num_bad += 1
                first_error = first_error or prompt.error
            elif len(prompt.tokens) + max_tokens > self._max_length:
                num_shortened += 1
        if not num_prompts:
            raise _empty(self.path)
        return PromptSummary(
            num_prompts=num_prompts,
            num_bad=num_bad,
            first_error=first_error,
            num_shortened=num_shortened,
            text_digest=texts.hexdigest(),
            token_digest=tokens.hexdigest(),
        )

    def _prompt(self, index: int, line: JsonLine) -> Prompt:
        where, fields = f"{self.path}:{line.number}", {}
        try:
            fields = line.parsed()
            tokens, inputs = self._read(fields)
        except DataError as error:
            # The reader of lines names the file itself; what is wrong within a line knows none.
            prefix = "" if error.where == where else f"{self.path.name}, line {line.number}: "
            named = DataError(f"{prefix}{error.what}", where=where, hint=_HINT)
            kept = {name: one for name, one in fields.items() if name not in ANSWER_FIELDS}
            return Prompt(index=index, where=where, fields=kept, error=named)
        return Prompt(index=index, where=where, fields=fields, tokens=tokens, inputs=inputs)

    def _read(self, fields: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[EncoderInput, ...]]:
        """Return the tokens of a line's prompt, and its inputs.

        Raises:
            DataError: It has none, or one that the model cannot continue.
        """
        taken = [name for name in ANSWER_FIELDS if name in fields]
        if taken:
            raise DataError(f"field {taken[0]!r} is one that answers have; give it another name.")
        given = [name for name in PROMPT_FIELDS if fields.get(name) is not None]
        read = self._inputs.read(fields) if self._inputs and len(given) == 1 else None
        if read is None:
            encoded = encode_prompt_record(
                fields, self._tokenizer, parses_special=self._parses_special
            )
            read = encoded.tokens, ()
        tokens, inputs = read
        if len(tokens) >= self._max_length:
            raise DataError(
                f"the prompt has {len(tokens)} tokens; the model reads {self._max_length}, of "
                "which one at least is the answer's."
            )
        return tokens, inputs


def _empty(path: Path) -> DataError:
    return DataError(
        f"{path.name} holds no prompt.",
        where=str(path),
        hint='write one a line, as {"prompt": "To be"}',
    )
