"""Spoken digits as files, which a speech synthesizer makes, for experiments without a download."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import attrs
import numpy as np

from axcore.config import config
from axcore.data import NamedFile, SampleFiles, cache_folder, list_files
from axcore.errors import DataError

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""Of the digits, as captions call them."""

ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-rp")
"""Ways to speak English, as espeak-ng calls them."""

SPEAKERS = (
    *("f1", "f2", "f3", "f4", "m1", "m2", "m3", "m4", "m6", "m7"),
    *("Alex", "Andy", "Annie", "Denis", "Gene", "Lee", "Mario", "Michael", "adam", "anika"),
    *("antonio", "belinda", "benjamin", "caleb", "david", "edward", "gustave", "john", "linda"),
    *("marcelo", "max", "michel", "paul", "quincy", "rob", "sandro", "steph", "victor"),
)
"""Its voices that are trained on."""

HELD_OUT_SPEAKERS = ("f5", "m5", "m8", "Mike", "aunty", "ed", "robert", "shelby")
"""Its voices that are evaluated on, and never trained on."""

_PER_VOICE = 10
_VERSION = 1
"""Of what is spoken; another one is another folder."""


@attrs.frozen
class Utterance:
    """What is said, and how.

    Args:
        name: Of its file, without the suffix.
        text: Digits in words.
        voice: As espeak-ng calls it.
        words_per_minute: The speed.
        pitch: Between 0 and 99.
    """

    name: str
    text: str
    voice: str
    words_per_minute: int
    pitch: int


def utterances() -> Iterator[Utterance]:
    """Yield what is spoken: one to four digits each, the same on every machine."""
    for speaker in (*SPEAKERS, *HELD_OUT_SPEAKERS):
        for accent in ACCENTS:
            voice = f"{accent}+{speaker}"
            # Of the voice alone, so that another voice changes nothing of the others.
            rng = np.random.default_rng([_VERSION, *voice.encode()])
            for number in range(_PER_VOICE):
                digits = rng.integers(10, size=rng.integers(1, 5))
                yield Utterance(
                    name=f"{speaker}/{accent}-{number:02}",
                    text=" ".join(NAMES[digit] for digit in digits),
                    voice=voice,
                    words_per_minute=int(rng.integers(110, 171)),
                    pitch=int(rng.integers(30, 71)),
                )


class SpokenDigits(SampleFiles):
    """Strings of one to four digits, spoken by voices of espeak-ng, a text next to each.

    The files are written below `AXCORE_DATA_CACHE` when they are first asked for: 1560 of them,
    140 MB, in less than a minute.

    Source: https://github.com/espeak-ng/espeak-ng
    """

    @config
    class Config(SampleFiles.Config):
        """Has the fields of its base; the folder is made.

        Attributes:
            speakers: Whether those to train on, or those who are held out.
        """

        folder: str = "spoken-digits"
        glob: str = "*/*.wav"
        speakers: Literal["train", "held_out"] = "train"

    def files(self) -> list[NamedFile]:
        """Return the sounds of the speakers, by name."""
        names = SPEAKERS if self.config.speakers == "train" else HELD_OUT_SPEAKERS
        found = list_files(str(spoken_digits()), self.config.glob)
        return [file for file in found if file.name.split("/")[0] in names]


def spoken_digits() -> Path:
    """Return the folder of the sounds, which are spoken where it is not there yet.

    Raises:
        DataError: espeak-ng is not installed, or failed.
    """
    folder = cache_folder() / f"spoken-digits-{_VERSION}"
    done = folder / "complete"
    if not done.exists():
        program = shutil.which("espeak-ng")
        if program is None:
            raise DataError(
                "spoken digits are made by espeak-ng, which is not installed",
                where="data.source",
                hint="apt-get install espeak-ng",
            )
        said = list(utterances())
        _check_voices(program, {one.voice.partition("+")[2] for one in said})
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(lambda one: _speak(program, folder, one), said):
                pass
        done.touch()
    return folder


def _check_voices(program: str, speakers: set[str]) -> None:
    """Check that a synthesizer has all speakers: it speaks for an unknown one with another voice.

    Raises:
        DataError: It does not.
    """
    shown = subprocess.run([program, "--voices=variant"], capture_output=True, text=True)
    known = {word.removeprefix("!v/") for word in shown.stdout.split() if word.startswith("!v/")}
    if missing := sorted(speakers - known):
        raise DataError(
            f"espeak-ng has no voice {', '.join(missing)}",
            where="data.source",
            hint="install version 1.50 or newer with all of its voices: apt-get install espeak-ng",
        )


def _speak(program: str, folder: Path, one: Utterance) -> None:
    """Write the sound of an utterance, and its text.

    Raises:
        DataError: espeak-ng failed.
    """
    path = folder / f"{one.name}.wav"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two processes may be at it: a file has its name once it is written, and both write the same.
    draft = path.with_suffix(f".{os.getpid()}")
    options = ("-v", one.voice, "-s", str(one.words_per_minute), "-p", str(one.pitch))
    spoken = subprocess.run(
        [program, *options, "-w", str(draft), one.text], capture_output=True, check=False
    )
    if spoken.returncode or not draft.exists():
        raise DataError(
            f"espeak-ng failed with status {spoken.returncode}: {spoken.stderr.decode()[-500:]}",
            where=f"voice {one.voice}",
            hint=f"try it by itself: espeak-ng -v {one.voice} one",
        )
    os.replace(draft, path)
    draft.write_text(one.text)
    os.replace(draft, path.with_suffix(".txt"))
