"""Handwritten digits as files, for experiments that need no download."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from axcore.config import config
from axcore.data import NamedFile, SampleFiles, cache_folder, list_files
from axcore.errors import DataError

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""Of the digits, as captions call them."""

_LARGEST = 16
"""Of the values of scikit-learn's pixels."""


def digit_arrays() -> tuple[Any, Any]:
    """Return 1797 pictures of 8 x 8 grey bytes, `[N, 8, 8]`, and the digit on each, `[N]`.

    Source: Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits", UCI.

    Raises:
        DataError: scikit-learn, which brings them, is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise DataError(
            "the pictures of digits are in scikit-learn, which is not installed",
            hint='pip install "axl-vision[digits]"',
        ) from error
    found = load_digits()
    return np.round(found.images * (255 / _LARGEST)).astype(np.uint8), found.target


def conversation(digit: int, number: int) -> list[dict[str, str]]:
    """Return questions about a picture and their answers, as OpenAI's messages.

    Args:
        digit: What is on the picture.
        number: Of the picture: decides the order of the questions.
    """
    asked = [
        ("Which digit?", NAMES[digit]),
        ("Is it even?", "no" if digit % 2 else "yes"),
        ("What is next?", NAMES[(digit + 1) % 10]),
    ]
    first = number % len(asked)
    turns = []
    for place, (question, answer) in enumerate(asked[first:] + asked[:first]):
        mark = "" if place else "<image>"
        turns.append({"role": "user", "content": mark + question})
        turns.append({"role": "assistant", "content": answer})
    return turns


class DigitFiles(SampleFiles):
    """The digits as pictures, each in the folder of its number, with a caption next to it, and a
    conversation about it.

    The files are written below `AXCORE_DATA_CACHE` when they are first asked for.
    """

    @config
    class Config(SampleFiles.Config):
        """Has the fields of its base; the folder is made."""

        folder: str = "digits"
        glob: str = "*/*.png"

    def files(self) -> list[NamedFile]:
        """Return the pictures, by name."""
        return list_files(str(written_digits()), self.config.glob)


def written_digits() -> Path:
    """Return the folder of the digits, which is written where it is not there yet."""
    folder = cache_folder() / "digits-2"  # 1 had no conversations
    done = folder / "complete"
    if not done.exists():
        from PIL import Image

        for number, (pixels, digit) in enumerate(zip(*digit_arrays(), strict=True)):
            path = folder / str(digit) / f"{number:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            # Another process may write, or already read, the same file: it has its name once it
            # is written, and both write the same.
            draft = path.with_suffix(f".{os.getpid()}")
            Image.fromarray(pixels).save(draft, "png")
            os.replace(draft, path)
            for suffix, text in (
                (".txt", f"the digit {NAMES[digit]}"),
                (".json", json.dumps({"messages": conversation(digit, number)})),
            ):
                draft.write_text(text)
                os.replace(draft, path.with_suffix(suffix))
        done.touch()
    return folder
