"""`Audio`: what a row has of a file, at its rate, or why not; and what augments it."""

import io

import numpy as np
import pytest
import soundfile
from axl_audio.sound import Audio, RandomGain, RandomNoise, SpeedPerturbation, decode_sound

from axcore.data import ExampleData, SampleFiles, Text
from axcore.errors import DataError

RATE = 16_000
AUGMENT = (SpeedPerturbation.Config(), RandomNoise.Config(), RandomGain.Config())


def tone(seconds=0.5, rate=RATE, hz=440.0):
    return 0.5 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)


def encoded(samples, rate=RATE, kind="WAV"):
    content = io.BytesIO()
    soundfile.write(content, samples, rate, format=kind)
    return content.getvalue()


def row(content, rng=None, **changes):
    feature = Audio.Config(max_seconds=1.0, **changes).build()
    return feature.make({"file": content}, rng)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_row_has_the_samples_and_silence_behind_them(kind):
    made = row(encoded(tone(), kind=kind))
    assert made[""].shape == (RATE,)
    assert abs(made["_length"] - RATE // 2) < 2000  # codecs add samples
    error = np.abs(made[""][: RATE // 2] - tone()).max()
    assert error < {"WAV": 1e-4, "FLAC": 1e-4}.get(kind, 1.1)
    assert not made[""][made["_length"] :].any()


@pytest.mark.parametrize("rate", [8000, 22_050, 44_100])
def test_another_rate_is_resampled(rate):
    made = row(encoded(tone(rate=rate), rate))
    assert abs(made["_length"] - RATE // 2) <= 1
    inner = slice(500, RATE // 2 - 500)  # the filter rings at the ends
    np.testing.assert_allclose(made[""][inner], tone()[inner], atol=0.01)


def test_channels_are_averaged():
    made = row(encoded(np.stack([tone(), np.zeros(RATE // 2)], axis=1)))
    np.testing.assert_allclose(made[""][: RATE // 2], tone() / 2, atol=1e-4)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no sound", "cannot be decoded"),
        (encoded(tone(1.5)), "1.50 seconds, more than max_seconds, 1"),
        (encoded(np.zeros(0)), "contains no sound"),
        (encoded(tone())[:20], "cannot be decoded"),
    ],
)
def test_a_bad_file_is_named(content, why):
    with pytest.raises(ValueError, match=why):
        row(content)


def test_a_sound_of_the_longest_length_is_good_at_every_rate():
    for rate in (8000, 11_025, 16_000, 48_000):
        assert row(encoded(tone(1.0, rate), rate))["_length"] == RATE
    assert len(decode_sound(encoded(tone(1.0)), sample_rate=7, max_seconds=1)) == 7


def test_augmentation_is_a_function_of_the_random_numbers():
    draws = [
        row(encoded(tone()), np.random.default_rng(seed), augment=AUGMENT) for seed in (1, 1, 2)
    ]
    assert (draws[0][""] == draws[1][""]).all()
    assert (draws[0][""] != draws[2][""]).any()
    assert (row(encoded(tone()), augment=AUGMENT)[""] == row(encoded(tone()))[""]).all()


def test_a_speed_makes_a_sound_longer_or_shorter():
    slow = SpeedPerturbation.Config(percent=(80,)).build()
    made = slow.apply(tone().astype(np.float32), np.random.default_rng(0))
    assert len(made) == RATE // 2 / 0.8
    inner = slice(500, len(made) - 500)
    np.testing.assert_allclose(made[inner], tone(0.625, hz=440 * 0.8)[inner], atol=0.01)


def test_a_sound_that_became_too_long_is_read_as_it_was():
    augment = (SpeedPerturbation.Config(percent=(50,)),)
    made = row(encoded(tone(0.75)), np.random.default_rng(0), augment=augment)
    assert made["_length"] == 0.75 * RATE


def test_noise_has_the_ratio_that_it_says():
    noisy = RandomNoise.Config(min_decibel=20, max_decibel=20.0001).build()
    sound = tone(4.0).astype(np.float32)
    noise = noisy.apply(sound, np.random.default_rng(0)) - sound
    ratio = 20 * np.log10(np.std(sound) / np.std(noise))
    assert ratio == pytest.approx(20, abs=0.1)


def data(folder, **changes):
    features = {
        "sound": Audio.Config(max_seconds=1.0, augment=AUGMENT),
        "text": Text.Config(length=8),
    }
    source = SampleFiles.Config(folder=str(folder), glob="*.wav", **changes)
    return ExampleData.Config(source=source, features=features, batch_size=2).build()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path / "cache"))
    for number in range(8):
        path = tmp_path / "sounds" / f"{number}.wav"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(tone(0.2 + number / 20)))
        path.with_suffix(".txt").write_text(f"tone {number}")
    return tmp_path / "sounds"


def test_rows_of_a_resumed_run_are_the_same(folder):
    whole = data(folder).train()
    batches = [next(whole) for _ in range(6)]
    resumed = data(folder).train()
    resumed.set_state(_after(folder, 3))
    for wanted in batches[3:]:
        found = next(resumed)
        assert all((found[name] == wanted[name]).all() for name in wanted)


def _after(folder, count):
    read = data(folder).train()
    for _ in range(count):
        next(read)
    return read.get_state()


def test_a_bad_file_stops_the_run_or_is_left_out(folder):
    (folder / "3.wav").write_bytes(encoded(tone(2.0)))
    with pytest.raises(DataError, match=r"2\.00 seconds"):
        data(folder).train()
    with pytest.warns(UserWarning, match="1 of 8"):
        train, held_out = data(folder, on_bad="skip")._splits
    assert len(train) + len(held_out) == 7
