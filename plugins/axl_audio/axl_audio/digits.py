"""Spoken digits as files, which a speech synthesizer makes, for experiments without a download."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

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

MARK = "<audio>"
"""What conversations have in the place of a sound."""

_PER_VOICE = 10
_VERSION, _CHATS_VERSION = 1, 1
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
        beside: What is in the files next to the sound, by their suffix.
    """

    name: str
    text: str
    voice: str
    words_per_minute: int
    pitch: int
    beside: Mapping[str, str]


def utterances() -> Iterator[Utterance]:
    """Yield what is spoken: one to four digits each, the same on every machine."""
    for speaker in (*SPEAKERS, *HELD_OUT_SPEAKERS):
        for accent in ACCENTS:
            voice = f"{accent}+{speaker}"
            # Of the voice alone, so that another voice changes nothing of the others.
            rng = np.random.default_rng([_VERSION, *voice.encode()])
            for number in range(_PER_VOICE):
                digits = rng.integers(10, size=rng.integers(1, 5))
                text = " ".join(NAMES[digit] for digit in digits)
                yield Utterance(
                    name=f"{speaker}/{accent}-{number:02}",
                    text=text,
                    voice=voice,
                    words_per_minute=int(rng.integers(110, 171)),
                    pitch=int(rng.integers(30, 71)),
                    beside={".txt": text},
                )


def single_digits() -> Iterator[Utterance]:
    """Yield each digit once by each voice, with a conversation about it."""
    for speaker in (*SPEAKERS, *HELD_OUT_SPEAKERS):
        for accent in ACCENTS:
            voice = f"{accent}+{speaker}"
            rng = np.random.default_rng([_CHATS_VERSION, *voice.encode()])
            for digit, name in enumerate(NAMES):
                messages = conversation(digit, int(rng.integers(3)))
                yield Utterance(
                    name=f"{speaker}/{accent}-{digit}",
                    text=name,
                    voice=voice,
                    words_per_minute=int(rng.integers(110, 171)),
                    pitch=int(rng.integers(30, 71)),
                    beside={".txt": name, ".json": json.dumps({"messages": messages})},
                )


def conversation(digit: int, first: int) -> list[dict[str, str]]:
    """Return questions about a spoken digit and their answers, as OpenAI's messages.

    Args:
        digit: What is said.
        first: Number of the question that is asked first.
    """
    asked = [
        ("Which digit?", NAMES[digit]),
        ("Is it even?", "no" if digit % 2 else "yes"),
        ("What is next?", NAMES[(digit + 1) % 10]),
    ]
    turns = []
    for place, (question, answer) in enumerate(asked[first:] + asked[:first]):
        turns.append({"role": "user", "content": ("" if place else MARK) + question})
        turns.append({"role": "assistant", "content": answer})
    return turns


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
        return _by_speakers(self.config, spoken_digits())


class SpokenDigitChats(SampleFiles):
    """Single digits, spoken by the same voices, a conversation about the sound next to each.

    The files are written below `AXCORE_DATA_CACHE` when they are first asked for: 1840 of them,
    60 MB, in less than a minute.
    """

    @config
    class Config(SampleFiles.Config):
        """Has the fields of its base; the folder is made.

        Attributes:
            speakers: Whether those to train on, or those who are held out.
        """

        folder: str = "spoken-digit-chats"
        glob: str = "*/*.wav"
        speakers: Literal["train", "held_out"] = "train"

    def files(self) -> list[NamedFile]:
        """Return the sounds of the speakers, by name."""
        folder = _spoken(f"spoken-digit-chats-{_CHATS_VERSION}", single_digits())
        return _by_speakers(self.config, folder)


def _by_speakers(cfg: Any, folder: Path) -> list[NamedFile]:
    names = SPEAKERS if cfg.speakers == "train" else HELD_OUT_SPEAKERS
    return [one for one in list_files(str(folder), cfg.glob) if one.name.split("/")[0] in names]


def spoken_digits() -> Path:
    """Return the folder of the strings of digits, which are spoken where they are not there yet.

    Raises:
        DataError: espeak-ng is not installed, or failed.
    """
    return _spoken(f"spoken-digits-{_VERSION}", utterances())


def _spoken(name: str, utterances: Iterable[Utterance]) -> Path:
    """Return the folder of that name, where all is spoken."""
    folder = cache_folder() / name
    done = folder / "complete"
    if not done.exists():
        program = shutil.which("espeak-ng")
        if program is None:
            raise DataError(
                "spoken digits are made by espeak-ng, which is not installed",
                where="data.source",
                hint="apt-get install espeak-ng",
            )
        said = list(utterances)
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
    """Write the sound of an utterance, and what is next to it.

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
    for suffix, text in one.beside.items():
        draft.write_text(text)
        os.replace(draft, path.with_suffix(suffix))
