"""Pictures: decoded, scaled and augmented; damaged ones are named and may be skipped."""

import io

import numpy as np
import pytest
from axl_vision.digits import NAMES, digit_arrays, written_digits
from axl_vision.images import Image, RandomFlip, RandomResizedCrop, RandomShift
from PIL import Image as Pillow

from axcore.config import evolve
from axcore.data import ExampleData, Label, SampleFiles
from axcore.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AXCORE_DATA_CACHE", str(tmp_path / "cache"))


def encoded(pixels=PIXELS, kind="png", **options):
    content = io.BytesIO()
    Pillow.fromarray(pixels).save(content, kind, **options)
    return content.getvalue()


def made(cfg, content=None, seed=None):
    rng = None if seed is None else np.random.default_rng(seed)
    feature = cfg.build()
    found = feature.make({"file": encoded() if content is None else content}, rng)[""]
    spec = feature.arrays()[""]
    assert (found.shape, str(found.dtype)) == (spec.shape, spec.dtype)
    return found


SAME = Image.Config(height=12, width=16)


def test_a_picture_of_the_right_size_is_its_pixels():
    np.testing.assert_array_equal(made(SAME), PIXELS)


def test_a_crop_is_of_the_middle_and_padding_is_black():
    cropped = made(Image.Config(height=12, width=12, fit="crop"))
    np.testing.assert_array_equal(cropped, PIXELS[:, 2:14])
    padded = made(Image.Config(height=16, width=16, fit="pad"))
    np.testing.assert_array_equal(padded[2:14], PIXELS)
    assert not padded[:2].any()
    assert not padded[14:].any()


def test_grey_has_one_channel_and_grey_files_have_three():
    assert made(evolve(SAME, num_channels=1)).shape == (12, 16, 1)
    grey = made(SAME, encoded(PIXELS[..., 0]))
    np.testing.assert_array_equal(grey, np.repeat(PIXELS[..., :1], 3, axis=2))


def test_a_picture_is_turned_as_the_camera_was_held():
    exif = Pillow.Exif()
    exif[0x0112] = 6  # a quarter to the right
    turned = made(Image.Config(height=16, width=12), encoded(kind="png", exif=exif))
    np.testing.assert_array_equal(turned, np.rot90(PIXELS, -1))


@pytest.mark.parametrize(
    "augment",
    [RandomShift.Config(max_fraction=0.3), RandomResizedCrop.Config(), RandomFlip.Config()],
)
def test_augmentation_depends_on_the_row_alone_and_not_on_evaluations(augment):
    cfg = evolve(SAME, augment=(augment,))
    np.testing.assert_array_equal(made(cfg), PIXELS)
    several = [made(cfg, seed=n) for n in range(8)]
    assert all(np.array_equal(made(cfg, seed=n), one) for n, one in enumerate(several))
    assert len({one.tobytes() for one in several}) > 1


def test_a_flip_is_of_left_and_right():
    cfg = evolve(SAME, augment=(RandomFlip.Config(),))
    found = {made(cfg, seed=n).tobytes() for n in range(16)}
    assert found == {PIXELS.tobytes(), PIXELS[:, ::-1].tobytes()}


def test_a_shift_moves_every_pixel_by_the_same_distance():
    cfg = evolve(SAME, augment=(RandomShift.Config(max_fraction=0.25),))
    for seed in range(8):
        found = made(cfg, seed=seed)
        padded = np.pad(PIXELS, ((3, 3), (4, 4), (0, 0)))
        places = [(y, x) for y in range(7) for x in range(9)]
        assert any(np.array_equal(padded[y : y + 12, x : x + 16], found) for y, x in places)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is none of BMP"),
        (b"no picture", "it is none of BMP"),
        (encoded()[:200], "truncated|broken"),
        (encoded(kind="jpeg")[:300], "[Tt]runcated"),
        ("text", "not bytes"),
    ],
)
def test_a_damaged_picture_is_a_bad_record(content, reason):
    with pytest.raises(ValueError, match=reason):
        SAME.build().check({"file": content})


def test_a_huge_picture_is_refused_before_it_is_decoded():
    with pytest.raises(ValueError, match="it has 16 x 12 pixels"):
        made(evolve(SAME, max_pixels=100))


def test_damaged_files_of_a_folder_are_named_or_skipped(tmp_path):
    for number in range(8):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded() if number else encoded()[:100])
    cfg = ExampleData.Config(
        source=SampleFiles.Config(folder=str(tmp_path / "pictures"), glob="*/*.png"),
        features={"image": SAME, "label": Label.Config()},
        batch_size=4,
    )
    with pytest.raises(DataError, match=r"a/0\.png is bad for feature 'image'"):
        cfg.build().summary()
    skipping = evolve(cfg, source=evolve(cfg.source, on_bad="skip", max_bad_fraction=0.2))
    with pytest.warns(UserWarning, match="1 of 8 files left out"):
        assert next(skipping.build().train())["image"].shape == (4, 12, 16, 3)


def test_digits_are_files_with_their_captions():
    folder = written_digits()
    pixels, numbers = digit_arrays()
    assert len([*folder.glob("*/*.png")]) == len(pixels) == 1797
    (path,) = folder.glob("*/0042.png")
    np.testing.assert_array_equal(np.asarray(Pillow.open(path)), pixels[42])
    assert path.parent.name == str(numbers[42])
    assert path.with_suffix(".txt").read_text() == f"the digit {NAMES[numbers[42]]}"
