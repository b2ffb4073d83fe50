"""`Audio`, a feature of data: a sound file is decoded, resampled, and augmented in training.

Letters: S samples of a row.
"""

import io
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from axcore.config import REQUIRED, Configurable, PositiveFloat, PositiveInt, config
from axcore.data import Feature, FeatureArray, file_content
from axl_audio.whole_files import check_is_whole

Waveform = NDArray[np.float32]
"""`[samples]`, one channel, between -1 and 1 as a rule."""


class Augment(Configurable, ABC):
    """Changes a sound at random; pure."""

    @abstractmethod
    def apply(self, sound: Waveform, rng: np.random.Generator) -> Waveform:
        """Return another sound.

        Args:
            sound: `[samples]`.
            rng: Random numbers, the same for the same row of the same epoch.
        """


class SpeedPerturbation(Augment):
    """Plays the sound slower or faster, which changes its pitch too.

    Source: Ko et al. 2015, "Audio Augmentation for Speech Recognition", Interspeech, section 2.
    """

    @config
    class Config(Augment.Config):
        """Which speeds.

        Attributes:
            percent: One of them is chosen, each as often; 100 is the sound as it is.
        """

        percent: tuple[PositiveInt, ...] = (90, 100, 110)

    def apply(self, sound: Waveform, rng: np.random.Generator) -> Waveform:
        """Return the sound at one of the speeds."""
        return resampled(sound, int(rng.choice(self.config.percent)), 100)


class RandomGain(Augment):
    """Makes the sound louder or softer."""

    @config
    class Config(Augment.Config):
        """By how much.

        Attributes:
            max_decibel: At most, in either direction.
        """

        max_decibel: PositiveFloat = 6.0

    def apply(self, sound: Waveform, rng: np.random.Generator) -> Waveform:
        """Return the sound at another volume."""
        decibel = self.config.max_decibel * rng.uniform(-1, 1)
        return sound * np.float32(10 ** (decibel / 20))


class RandomNoise(Augment):
    """Adds white noise, softer than the sound by a random ratio."""

    @config
    class Config(Augment.Config):
        """How loud.

        Attributes:
            min_decibel: Of the sound above the noise, at least.
            max_decibel: At most.
        """

        min_decibel: float = 10.0
        max_decibel: float = 40.0

    def apply(self, sound: Waveform, rng: np.random.Generator) -> Waveform:
        """Return the sound with noise."""
        ratio = rng.uniform(self.config.min_decibel, self.config.max_decibel)
        level = np.sqrt(np.mean(np.square(sound))) * 10 ** (-ratio / 20)
        noise = rng.standard_normal(len(sound), np.float32)
        return sound + np.float32(level) * noise


class Audio(Feature):
    """The samples of a sound `[S]`, silence behind it, and how many there are, as `NAME_length`.

    Several channels are averaged to one. Files are whatever libsndfile reads: WAV, FLAC, Ogg, MP3.
    """

    @config
    class Config(Feature.Config):
        """Which sound, and how it is sampled.

        Attributes:
            field: Contains the file: `file` in a folder of sounds, the suffix in files as
                WebDataset writes them, a column in Parquet.
            sample_rate: Samples a second of a row; a file that has others is resampled.
            max_seconds: S in seconds. A longer sound is bad.
            augment: What changes sounds in training, in this order. A sound that became too long
                is read as it was.
        """

        field: str = "file"
        sample_rate: PositiveInt = 16_000
        max_seconds: PositiveFloat = REQUIRED
        augment: tuple[Augment.Config, ...] = ()

        @property
        def num_samples(self) -> int:
            """S."""
            return round(self.max_seconds * self.sample_rate)

    @cached_property
    def _augments(self) -> list[Augment]:
        return [one.build() for one in self.config.augment]

    @property
    def fields(self) -> tuple[str, ...]:
        """The file."""
        return (self.config.field,)

    def arrays(self) -> Mapping[str, FeatureArray]:
        """Return the samples and their number."""
        return {
            "": FeatureArray((self.config.num_samples,), "float32"),
            "_length": FeatureArray((), "int32"),
        }

    def make(
        self, record: Mapping[str, Any], rng: np.random.Generator | None
    ) -> Mapping[str, NDArray[Any]]:
        """Return the samples, with zeros behind them."""
        cfg = self.config
        content = file_content(record[cfg.field])
        sound = decode_sound(content, sample_rate=cfg.sample_rate, max_seconds=cfg.max_seconds)
        if rng is not None:
            changed = sound
            for augment in self._augments:
                changed = augment.apply(changed, rng)
            sound = changed if len(changed) <= cfg.num_samples else sound
        samples = np.zeros(cfg.num_samples, np.float32)
        samples[: len(sound)] = sound
        return {"": samples, "_length": np.asarray(len(sound), np.int32)}


def decode_sound(content: bytes, *, sample_rate: int, max_seconds: float) -> Waveform:
    """Return the samples of a sound file, of one channel and at a rate.

    Args:
        content: A file of any format that libsndfile reads.
        sample_rate: Samples a second.
        max_seconds: A longer sound is not decoded.

    Raises:
        ValueError: It cannot be decoded, ends too early, is too long, or contains no sound.
    """
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            rate, said = file.samplerate, file.frames
            if not MIN_RATE <= rate <= MAX_RATE:
                expected = f"expected {MIN_RATE:,} to {MAX_RATE:,}"
                raise ValueError(f"it has {rate:,} samples a second; {expected}")
            # One more than may be, since headers may be wrong about a file's length.
            most = math.floor(max_seconds * rate) + 1
            found = _one_channel(file, most)
    except soundfile.LibsndfileError as error:
        raise ValueError(f"it cannot be decoded: {error.error_string}") from error
    if len(found) == most:
        seconds = max(said if said < _UNKNOWN else 0, most) / rate
        raise ValueError(f"it has {seconds:.2f} seconds, more than max_seconds, {max_seconds:g}")
    # First: of a damaged file, there may be nothing that can be decoded.
    check_is_whole(content)
    if not len(found) or not np.isfinite(found).all():
        raise ValueError("it contains no sound" if not len(found) else "it has samples of nan")
    if len(found) < said < _UNKNOWN:
        raise ValueError("it ends too early: its header says that it is longer")
    # Rounding may give one sample more than `max_seconds` has.
    return resampled(found, rate, sample_rate)[: round(max_seconds * sample_rate)]


MIN_RATE, MAX_RATE = 1_000, 384_000
"""Samples a second that a file may have: the filter for another rate is as long as the larger."""

_BLOCK = 1 << 20
"""Samples of all channels that are decoded at once: a small file may have a thousand channels."""

_UNKNOWN = 1 << 60
"""Samples that libsndfile reports where a file does not say how many it has."""


def _one_channel(file: Any, most: int) -> Waveform:
    """Return the mean of the channels of an open file, of so many samples at most."""
    pieces = [np.zeros(0, np.float32)]
    while most:
        size = min(most, max(1, _BLOCK // file.channels))
        piece = file.read(size, dtype="float32", always_2d=True)
        pieces.append(piece.mean(axis=1))
        most -= len(piece)
        if len(piece) < size:
            break
    return np.concatenate(pieces)


def resampled(sound: Waveform, rate: int, new_rate: int) -> Waveform:
    """Return a sound that has `new_rate` samples for each `rate` that it had.

    By a polyphase filter (Kaiser window), as `scipy.signal.resample_poly` has it.
    """
    if rate == new_rate:
        return sound
    from scipy.signal import resample_poly

    common = math.gcd(rate, new_rate)
    made: Waveform = resample_poly(sound, new_rate // common, rate // common).astype(np.float32)
    return made
