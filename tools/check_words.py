"""Finds words of tools/words.toml in the files that git knows: `python tools/check_words.py`.

In Python files only comments and texts count; names are free.
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

ROOT = Path(__file__).parents[1]
WORDS = ROOT / "tools" / "words.toml"
PROSE = (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1))

Rule = tuple[re.Pattern[str], re.Pattern[str] | None, str]


def rules(table: dict) -> list[Rule]:
    """Return what to find, what to leave out of a line first, and what to write instead."""
    return [
        (
            re.compile(rf"\b({one['pattern']})\b", re.IGNORECASE),
            re.compile("|".join(one["but_not"]), re.IGNORECASE) if "but_not" in one else None,
            one["instead"],
        )
        for one in table["words"]
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
    """Yield a line for each word that is found in a file."""
    for number, line in lines_of(path):
        for pattern, but_not, instead in wanted:
            for match in pattern.finditer(but_not.sub("", line) if but_not else line):
                yield f"{path.relative_to(ROOT)}:{number}: {match[0]!r}; write: {instead}"


def main() -> int:
    """Print what is found; returns 1 if there is any."""
    table = tomllib.loads(WORDS.read_text(encoding="utf-8"))
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
    found = [line for name in names for line in found_in(ROOT / name, rules(table))]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
