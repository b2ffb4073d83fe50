"""Finds words of tools/words.toml in the files that git knows: `python tools/check_words.py`.

Words count in prose: text files, and comments and texts of Python. Names count in code too.
"""

import fnmatch
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
WORDS = ROOT / "tools" / "words.toml"
PROSE = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1))


class Rule(NamedTuple):
    """What to find and where, what to leave out of a line first, and what to write instead."""

    pattern: re.Pattern[str]
    but_not: re.Pattern[str] | None
    files: tuple[str, ...]
    instead: str
    is_name: bool

    def applies_to(self, name: str) -> bool:
        """Whether the rule is one for a file; without patterns it is for all."""
        return not self.files or any(fnmatch.fnmatch(name, pattern) for pattern in self.files)

    def found_in(self, line: str) -> Iterator[str]:
        """Yield the words of a line that break the rule."""
        rest = self.but_not.sub("", line) if self.but_not else line
        yield from (match[0] for match in self.pattern.finditer(rest))


def rules(table: dict[str, Any]) -> list[Rule]:
    """Return the rules for `words` of prose, and for `names`, which count in their own case."""
    return [
        Rule(
            re.compile(rf"\b({one['pattern']})\b", flags),
            re.compile("|".join(one["but_not"]), flags) if "but_not" in one else None,
            tuple(one.get("files", ())),
            one["instead"],
            is_name=kind == "names",
        )
        for kind, flags in (("words", re.IGNORECASE), ("names", re.NOFLAG))
        for one in table.get(kind, ())
    ]


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield numbered lines of prose: all of a text, comments and texts of Python."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.splitlines(), start=1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in PROSE:
            yield from enumerate(token.string.splitlines(), start=token.start[0])


def found_in(path: Path, wanted: list[Rule]) -> Iterator[str]:
    """Yield a line for each word, and each name, that is found in a file."""
    name = path.relative_to(ROOT).as_posix()
    wanted = [rule for rule in wanted if rule.applies_to(name)]
    prose = [(line, False) for line in lines_of(path)]
    every = [(line, True) for line in enumerate(path.read_text("utf-8").splitlines(), start=1)]
    for (number, line), is_name in [*prose, *every]:
        for rule in wanted:
            if rule.is_name is is_name:
                for word in rule.found_in(line):
                    yield f"{name}:{number}: {word!r}; write: {rule.instead}"


def main() -> int:
    """Print what is found; returns 1 if there is any."""
    table = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    wanted = rules(table)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    names = [
        name
        for name in listed
        if (ROOT / name).is_file()
        and not (ROOT / name).is_symlink()
        and not any(fnmatch.fnmatch(name, pattern) for pattern in table["skip"])
    ]
    found = [line for name in names for line in found_in(ROOT / name, wanted)]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
