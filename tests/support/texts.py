"""A little text to train on."""

from pathlib import Path


def write_text(folder: Path, *, files: int = 40) -> None:
    """Writes so many files of simple sums into a new folder."""
    folder.mkdir(parents=True)
    for i in range(files):
        text = "".join(f"{j} times {i} is {i * j}.\n" for j in range(60))
        (folder / f"{i}.txt").write_text(text, encoding="utf-8")
