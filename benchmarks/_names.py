"""Instructions about names made from the standard library, and pairs of answers to an open one."""

import json
import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from axcore.data import StandardLibrary

LONGEST = 24
"""Characters of a name, so that a question and its answer fill half a row of 128 bytes."""

NUM_PAIRS = 1500

_SNAKE_CASE = re.compile(r"\b[a-z]+(?:_[a-z]+){1,3}\b")


def _camel(words: list[str]) -> str:
    return words[0] + "".join(map(str.capitalize, words[1:]))


def _constant(words: list[str]) -> str:
    return "_".join(words).upper()


SPELLINGS: dict[str, Callable[[list[str]], str]] = {
    "camel": _camel,
    "class": lambda words: "".join(map(str.capitalize, words)),
    "constant": _constant,
    "words": " ".join,
}
"""What each instruction asks for, of the words of a name."""

OPEN = "spell"
"""The instruction that leaves the spelling open."""


@attrs.frozen
class Question:
    """An instruction about a name, as `camel: read_line`, and its answer, `readLine`."""

    text: str
    answer: str

    @property
    def is_open(self) -> bool:
        """Whether another spelling answers it as well."""
        return self.text.startswith(f"{OPEN}:")


@attrs.frozen
class Pair:
    """An open question with the spelling that is preferred, and the other."""

    text: str
    chosen: str
    rejected: str


def make_questions() -> tuple[list[Question], list[Pair]]:
    """Return questions and pairs; each name is in one of them, once."""
    names = {
        name
        for document in StandardLibrary.Config().build().documents()
        for name in _SNAKE_CASE.findall(document.text)
        if len(name) <= LONGEST
    }
    draw = random.Random(0)
    mixed = draw.sample(sorted(names), len(names))
    pairs = [_pair(name) for name in mixed[:NUM_PAIRS]]
    kinds = [*SPELLINGS, OPEN]
    questions = [_question(kinds[i % len(kinds)], name) for i, name in enumerate(mixed[NUM_PAIRS:])]
    return questions, pairs


def _question(kind: str, name: str) -> Question:
    words = name.split("_")
    if kind != OPEN:
        return Question(f"{kind}: {name}", SPELLINGS[kind](words))
    spell = random.Random(name).choice([_camel, _constant])
    return Question(f"{kind}: {name}", spell(words))


def _pair(name: str) -> Pair:
    words = name.split("_")
    return Pair(f"{OPEN}: {name}", _camel(words), _constant(words))


def write_chats(path: Path, questions: Iterable[Question]) -> None:
    """Write a conversation for each question."""
    _write(
        path,
        (
            {
                "messages": [
                    {"role": "user", "content": one.text},
                    {"role": "assistant", "content": one.answer},
                ]
            }
            for one in questions
        ),
    )


def write_preferences(path: Path, pairs: Iterable[Pair]) -> None:
    """Write the pairs."""
    _write(
        path,
        ({"prompt": o.text, "chosen": o.chosen, "rejected": o.rejected} for o in pairs),
    )


def _write(path: Path, records: Iterable[object]) -> None:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
