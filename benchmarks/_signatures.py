"""Questions and answers made from the standard library: a docstring's first line, a signature."""

import ast
import json
import random
from collections.abc import Iterator
from pathlib import Path

from axcore.data import StandardLibrary

LONGEST = 100
"""Characters of question and answer together, so that each fits a row of 128 bytes."""

LONGEST_ANSWER = 12
"""Characters of an answer: at most one or two parameters, which so small a model can guess."""


def examples() -> list[tuple[str, str]]:
    """Returns name and docstring of each function, with its parameters; each question once."""
    found: dict[str, str] = {}
    for document in StandardLibrary.Config().build().documents():
        for question, answer in _of_file(document.text):
            found.setdefault(question, answer)
    return sorted(found.items())


def _of_file(text: str) -> Iterator[tuple[str, str]]:
    try:
        tree = ast.parse(text)
    except SyntaxError:  # files of the library that are not Python, as templates
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (docstring := ast.get_docstring(node)):
            line = docstring.splitlines()[0] if docstring else ""
            question = f"{node.name}: {line}"
            answer = f"({ast.unparse(node.args)})"
            is_short = len(answer) <= LONGEST_ANSWER
            if line and is_short and len(question.encode()) + len(answer) <= LONGEST:
                yield question, answer


def write_chats(path: Path, pairs: list[tuple[str, str]]) -> None:
    """Writes a conversation for each example."""
    path.write_text(
        "".join(
            json.dumps(
                {
                    "messages": [
                        {"role": "user", "content": question},
                        {"role": "assistant", "content": answer},
                    ]
                }
            )
            + "\n"
            for question, answer in pairs
        )
    )


def write_preferences(path: Path, pairs: list[tuple[str, str]]) -> None:
    """Writes a pair for each example: its own parameters, and those of another function."""
    draw = random.Random(0)
    lines = []
    for question, answer in pairs:
        other = draw.choice(pairs)[1]
        if other != answer:
            lines.append({"prompt": question, "chosen": answer, "rejected": other})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
