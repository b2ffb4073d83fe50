"""Log-mel features: equal to their formulas, and the same however rows are padded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from axl_audio.features import Features, LogMel, SpecAugment, WhisperLogMel, mel_bands

from axcore.module import functional

LENGTHS = (3300, 1600)


def sounds(size, lengths=LENGTHS):
    """Noise, with anything but silence behind it."""
    draw = np.random.default_rng(0)
    rows = [draw.normal(size=max(lengths)).astype(np.float32) for _ in lengths]
    made = np.zeros((len(lengths), size), np.float32)
    for row, sound, length in zip(made, rows, lengths, strict=True):
        row[:length] = sound[:length]
    return jnp.asarray(made), jnp.array(lengths)


def features(cfg, size=4000):
    return functional(cfg.build(), {}, *sounds(size))[0]


def by_formula(sound, length, decibel=80.0):
    """Frames one by one, in float64."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    padded = np.pad(np.asarray(sound, np.float64), (200, 600))
    bands = mel_bands(80, 400, 16_000, min_hz=0, max_hz=8000).astype(np.float64)
    starts = range(0, length, 160)
    power = [np.abs(np.fft.rfft(padded[s : s + 400] * window)) ** 2 @ bands for s in starts]
    logs = np.log(np.maximum(power, np.max(power) * 10 ** (-decibel / 10)))
    return (logs - logs.mean(0)) / np.sqrt(logs.var(0) + 1e-5)


def test_features_are_those_of_the_formula():
    found, (rows, lengths) = features(LogMel.Config()), sounds(4000)
    for row, is_real, sound, length in zip(*found, rows, lengths, strict=True):
        wanted = by_formula(sound, int(length))
        assert is_real.sum() == len(wanted)
        np.testing.assert_allclose(row[: len(wanted)], wanted, atol=1e-3)
        assert not row[len(wanted) :].any()


@pytest.mark.parametrize("kind", [LogMel, WhisperLogMel])
def test_features_do_not_depend_on_how_long_rows_are(kind):
    short, long = (features(kind.Config(), size) for size in (4000, 9000))
    count = short.frames.shape[1]
    assert (short.is_real == long.is_real[:, :count]).all()
    assert not long.is_real[:, count:].any()
    # The last frames of a row of Whisper see its end, where samples are mirrored.
    np.testing.assert_allclose(short.frames[:, :-2], long.frames[:, : count - 2], atol=1e-5)
    if kind is LogMel:
        np.testing.assert_allclose(short.frames, long.frames[:, :count], atol=1e-5)


def test_louder_sounds_have_the_same_normalized_features():
    rows, lengths = sounds(4000)
    module = LogMel.Config().build()
    soft, loud = (functional(module, {}, rows * gain, lengths)[0].frames for gain in (1, 7))
    np.testing.assert_allclose(soft, loud, atol=1e-3)


@pytest.mark.parametrize("decibel", [20.0, 60.0])
def test_silence_counts_as_so_much_below_the_loudest(decibel):
    rows, lengths = sounds(4000)
    quiet = rows.at[:, 800:].multiply(1e-4)
    found, _ = functional(LogMel.Config(max_decibel=decibel).build(), {}, quiet, lengths)
    wanted = by_formula(quiet[1], 1600, decibel)
    np.testing.assert_allclose(found.frames[1, : len(wanted)], wanted, atol=1e-3)


def test_bands_are_triangles_of_area_one():
    bands = mel_bands(40, 4000, 16_000, min_hz=0, max_hz=8000)
    assert (bands >= 0).all()
    np.testing.assert_allclose(bands.sum(0) * 16_000 / 4000, 1, rtol=0.01)
    peaks = np.argmax(bands, axis=0)
    assert (np.diff(peaks) > 0).all()


def augmented(seed, **changes):
    frames = jnp.ones((3, 50, 20))
    is_real = jnp.arange(50)[None] < jnp.array([50, 30, 0])[:, None]
    cfg = SpecAugment.Config(max_bands=5, max_frames=10, **changes)
    key = jax.random.key(seed)
    made = functional(cfg.build(), {}, Features(frames, is_real), rng=key, training=True)[0]
    return np.asarray(made.frames)


def test_masks_hide_at_most_what_they_may_within_real_frames():
    for seed in range(20):
        made = augmented(seed, num_band_masks=0, num_time_masks=1)
        is_hidden = (made == 0).all(axis=2)
        assert is_hidden.sum(1).max() <= 10
        assert is_hidden[1].sum() <= 0.2 * 30
        assert not is_hidden[1, 30:].any()
        assert not is_hidden[2].any()
    hidden = [(augmented(seed, num_time_masks=0) == 0).all(axis=1).sum() for seed in range(20)]
    assert 0 < max(hidden) <= 3 * 2 * 5


def test_masks_are_of_training_alone():
    given = Features(jnp.ones((1, 50, 20)), jnp.ones((1, 50), bool))
    made, _ = functional(SpecAugment.Config().build(), {}, given, rng=jax.random.key(0))
    assert (made.frames == 1).all()
    assert (augmented(1) == augmented(1)).all()
    assert (augmented(1) != augmented(2)).any()
