"""Log-mel features of sound, made on the device; and `SpecAugment`, which hides parts of them.

Letters: B rows, S samples, T frames, F frequencies, M mel bands.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from axcore.config import Fraction, NonNegativeInt, PositiveFloat, PositiveInt, config
from axcore.errors import ModuleError
from axcore.module import Module

Sound = Float[Array, "batch samples"]
Lengths = Int[Array, " batch"]
Frames = Float[Array, "batch time bands"]


class Features(NamedTuple):
    """What a model sees of sounds.

    Args:
        frames: `[B, T, M]`.
        is_real: Which frames are not padding, `[B, T]`.
    """

    frames: Frames
    is_real: Bool[Array, "batch time"]


class SoundFeatures(Module):
    """From samples to frames; abstract. A subclass says how: `forward(sound, length)`."""

    @config
    class Config(Module.Config["SoundFeatures"]):
        """The config of features.

        Args:
            sample_rate: Samples a second of the sounds.
        """

        sample_rate: PositiveInt = 16_000

        @property
        def size(self) -> int:
            """Numbers of a frame, M."""
            raise NotImplementedError

        @property
        def step(self) -> int:
            """Samples from a frame to the next."""
            raise NotImplementedError

        def num_frames(self, num_samples: int) -> int:
            """Return T, from S."""
            raise NotImplementedError

    def forward(self, sound: Sound, length: Lengths) -> Features:
        """Return the features, in the dtype that the model computes in.

        Args:
            sound: `[B, S]`.
            length: How many samples of each row are not padding.
        """
        raise NotImplementedError(f"{type(self).__qualname__} makes no features")


class LogMel(SoundFeatures):
    """Power in mel bands, as logarithms of mean 0 and variance 1 over each row's own frames.

    Frame t is of the samples around `t * hop`, and is padding where that is behind the sound. Zeros
    are before and behind all samples, so that no real frame depends on how long rows are.

    Source: Davis and Mermelstein 1980, IEEE Trans. ASSP 28(4), section II; mel bands: Slaney 1998,
    "Auditory Toolbox".
    """

    @config
    class Config(SoundFeatures.Config):
        """The config of a `LogMel`.

        Args:
            num_bands: M.
            window: Samples of a frame, weighted by a Hann window.
            hop: Samples from a frame to the next.
            min_hz: Where the first band begins.
            max_hz: Where the last band ends; half of the sample rate where None.
            max_decibel: Power that is further below the largest of its row counts as this much, so
                that silence without any noise is not far from all other sounds.
        """

        num_bands: PositiveInt = 80
        window: PositiveInt = 400
        hop: PositiveInt = 160
        min_hz: float = 0.0
        max_hz: PositiveFloat | None = None
        max_decibel: PositiveFloat = 80.0

        @property
        def size(self) -> int:
            """Numbers of a frame: its bands."""
            return self.num_bands

        @property
        def step(self) -> int:
            """Samples from a frame to the next."""
            return self.hop

        def num_frames(self, num_samples: int) -> int:
            """Return T, from S."""
            return -(-num_samples // self.hop)

    def setup(self, cfg: Config) -> None:
        """Make the window and the bands, which are constants and no state."""
        max_hz = cfg.max_hz or cfg.sample_rate / 2
        self.bands = mel_bands(
            cfg.num_bands, cfg.window, cfg.sample_rate, min_hz=cfg.min_hz, max_hz=max_hz
        )
        # A periodic window: that of one sample more, without the last.
        self.window = np.hanning(cfg.window + 1)[:-1].astype(np.float32)

    def forward(self, sound: Sound, length: Lengths) -> Features:
        """Return the features, in the dtype that the model computes in.

        Args:
            sound: `[B, S]`.
            length: How many samples of each row are not padding.
        """
        num_frames = self.config.num_frames(sound.shape[1])
        starts = jnp.arange(num_frames, dtype=jnp.int32) * self.config.hop
        is_real = starts[None, :] < length[:, None]
        # In 16 bits the quiet bands would be lost below the loud ones.
        frames = self.scaled(self.power(sound.astype(jnp.float32)), is_real)
        return Features(frames.astype(self.dtypes.compute), is_real)

    def power(self, sound: Sound) -> Frames:
        """Return the power in each band."""
        cfg = self.config
        num_frames, half = cfg.num_frames(sound.shape[1]), cfg.window // 2
        # The last frame ends here; of sounds that are padded otherwise, later samples are unread.
        end = (num_frames - 1) * cfg.hop + cfg.window
        samples = self.padded(sound, half, max(half, end - half - sound.shape[1]))
        index = np.arange(num_frames)[:, None] * cfg.hop + np.arange(cfg.window)
        spectrum = jnp.fft.rfft(samples[:, index] * self.window[None, None, :], axis=-1)
        power = jnp.square(spectrum.real) + jnp.square(spectrum.imag)
        # Accelerators would multiply in fewer bits, by default.
        return jnp.matmul(power, self.bands, precision=jax.lax.Precision.HIGHEST)

    def padded(self, sound: Sound, before: int, behind: int) -> Sound:
        """Return sounds with samples before and behind them."""
        return jnp.pad(sound, ((0, 0), (before, behind)))

    def scaled(self, power: Frames, is_real: Bool[Array, "batch time"]) -> Frames:
        """Return the features of the power; zeros for padding."""
        is_real = is_real[..., None]
        largest = jnp.max(jnp.where(is_real, power, 0), axis=(1, 2), keepdims=True)
        least = jnp.maximum(largest * 10 ** (-self.config.max_decibel / 10), _FLOOR)
        logs = jnp.log(jnp.maximum(power, least))
        count = jnp.maximum(jnp.sum(is_real, axis=1, keepdims=True, dtype=jnp.float32), 1)
        mean = jnp.sum(jnp.where(is_real, logs, 0), axis=1, keepdims=True) / count
        centred = jnp.where(is_real, logs - mean, 0)
        variance = jnp.sum(jnp.square(centred), axis=1, keepdims=True) / count
        return centred * jax.lax.rsqrt(variance + 1e-5)


_FLOOR = 1e-10
"""The least power that counts, so that silence has a logarithm."""


class WhisperLogMel(LogMel):
    """The features of Whisper: equal to those of transformers' `WhisperFeatureExtractor`.

    Differs from `LogMel`: samples are mirrored at both ends of a row, and logarithms of base 10 are
    clamped and scaled, not normalized. So a sound that ends within half a window of
    the row's end has other last frames than the same one in a longer row.

    Source: Radford et al. 2022, arXiv:2212.04356, section 2.2, and `log_mel_spectrogram` in
    https://github.com/openai/whisper.
    """

    @config
    class Config(LogMel.Config):
        """Has the fields of its base."""

    def padded(self, sound: Sound, before: int, behind: int) -> Sound:
        """Return sounds, mirrored at both ends.

        Raises:
            ModuleError: They are shorter than half a window.
        """
        if sound.shape[1] <= behind:
            raise ModuleError(
                f"sounds have {sound.shape[1]} samples, and {behind} of them are mirrored at the "
                "end",
                hint=f"give {behind + 1} samples or more, padded with zeros",
            )
        return jnp.pad(sound, ((0, 0), (before, behind)), mode="reflect")

    def scaled(self, power: Frames, is_real: Bool[Array, "batch time"]) -> Frames:
        """Return the features of the power."""
        logs = jnp.log10(jnp.maximum(power, _FLOOR))
        # Padding counts too: it is silence, which is never the largest.
        largest = jnp.max(logs, axis=(1, 2), keepdims=True)
        return (jnp.maximum(logs, largest - self.config.max_decibel / 10) + 4) / 4


class SpecAugment(Module):
    """Hide random bands and random stretches of time in training; what is hidden is 0.

    Source: Park et al. 2019, arXiv:1904.08779, section 2, without time warping.
    """

    @config
    class Config(Module.Config["SpecAugment"]):
        """The config of a `SpecAugment`; without masks it does nothing, and uses no random key.

        Args:
            num_band_masks: Masks over bands.
            max_bands: Bands that one of them hides, at most.
            num_time_masks: Masks over time, within the frames that are not padding.
            max_frames: Frames that one of them hides, at most.
            max_fraction: Share of a row's frames that one of them hides, at most.
        """

        num_band_masks: NonNegativeInt = 2
        max_bands: PositiveInt = 27
        num_time_masks: NonNegativeInt = 2
        max_frames: PositiveInt = 100
        max_fraction: Fraction = 0.2

    def forward(self, features: Features) -> Features:
        """Return the features with masks, or as they are outside of training."""
        cfg = self.config
        if not self.training or not (cfg.num_band_masks or cfg.num_time_masks):
            return features
        rows, num_frames, num_bands = features.frames.shape
        for_bands, for_time = jax.random.split(self.rng("spec_augment"))
        bands = jnp.full((rows, 1), num_bands, jnp.int32)
        hidden_bands = random_masks(
            for_bands, num_bands, bands, jnp.minimum(bands, cfg.max_bands), cfg.num_band_masks
        )
        lengths = jnp.sum(features.is_real, axis=1, keepdims=True, dtype=jnp.int32)
        share = cfg.max_fraction * lengths.astype(jnp.float32)
        most = jnp.minimum(share.astype(jnp.int32), cfg.max_frames)
        hidden_time = random_masks(for_time, num_frames, lengths, most, cfg.num_time_masks)
        is_hidden = hidden_time[:, :, None] | hidden_bands[:, None, :]
        return features._replace(frames=jnp.where(is_hidden, 0, features.frames))


def random_masks(
    key: Array,
    size: int,
    lengths: Int[Array, "batch 1"],
    most: Int[Array, "batch 1"],
    count: int,
) -> Bool[Array, "batch size"]:
    """Return which places of each row are hidden by `count` masks, each of at most `most` places.

    Args:
        key: Random numbers.
        size: Places of a row.
        lengths: How many of them may be hidden.
        most: The width of a mask is between 0 and this, all as likely.
        count: Masks of a row.
    """
    shape = (lengths.shape[0], count)
    width_key, begin_key = jax.random.split(key)
    widths = jax.random.randint(width_key, shape, 0, most + 1)
    begins = jax.random.randint(begin_key, shape, 0, lengths - widths + 1)
    places = jnp.arange(size, dtype=jnp.int32)[None, None, :]
    is_hidden = (places >= begins[..., None]) & (places < (begins + widths)[..., None])
    return jnp.any(is_hidden, axis=1)


def mel_bands(
    num_bands: int, window: int, sample_rate: int, *, min_hz: float, max_hz: float
) -> NDArray[np.float32]:
    """Return what each band takes of each frequency, `[F, M]`: triangles of area 1.

    Source: Slaney 1998, "Auditory Toolbox": a mel scale that is linear below 1 kHz, and logarithmic
    above.
    """
    frequencies = np.arange(window // 2 + 1) * sample_rate / window
    edges = _hz(np.linspace(_mel(min_hz), _mel(max_hz), num_bands + 2))
    rising = (frequencies[:, None] - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - frequencies[:, None]) / np.diff(edges)[1:]
    triangles = np.maximum(0, np.minimum(rising, falling))
    bands: NDArray[np.float32] = (triangles * 2 / (edges[2:] - edges[:-2])).astype(np.float32)
    return bands


_LINEAR_HZ = 200 / 3
"""Hertz of one mel, below 1 kHz, which is 15 mel."""

_LOG_STEP = np.log(6.4) / 27
"""By how much the logarithm of a frequency grows with a mel, above."""


def _mel(hz: float) -> float:
    return hz / _LINEAR_HZ if hz < 1000 else 15 + float(np.log(hz / 1000)) / float(_LOG_STEP)


def _hz(mel: NDArray[Any]) -> NDArray[Any]:
    return np.where(mel < 15, mel * _LINEAR_HZ, 1000 * np.exp(_LOG_STEP * (mel - 15)))
