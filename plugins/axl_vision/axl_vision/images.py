"""`Image`, a feature of data: a picture is decoded, scaled, and augmented in training.

Letters: H and W height and width of a row, C channels.
"""

import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from axcore.config import REQUIRED, Configurable, Fraction, PositiveFloat, PositiveInt, config
from axcore.data import (
    Feature,
    FeatureArray,
    Media,
    decode_image,
    file_content,
    warnings_as_errors,
)

Picture = Any
"""An image of Pillow."""


class Augment(Configurable, ABC):
    """Changes a picture at random, before it is scaled; pure."""

    @abstractmethod
    def apply(self, picture: Picture, rng: np.random.Generator) -> Picture:
        """Return another picture.

        Args:
            picture: An image of Pillow.
            rng: Random numbers, the same for the same row of the same epoch.
        """


class RandomResizedCrop(Augment):
    """Cuts a part of random size and place out of the picture.

    Source: Szegedy et al. 2014, arXiv:1409.4842, section 6.
    """

    @config
    class Config(Augment.Config):
        """How large a part.

        Attributes:
            min_area: Share of the picture's area that the part has, at least.
            max_ratio: Its width divided by its height is at most this times the picture's own, and
                at least that divided by this.
        """

        min_area: Fraction = 0.35
        max_ratio: PositiveFloat = 4 / 3

    def apply(self, picture: Picture, rng: np.random.Generator) -> Picture:
        """Return the part."""
        cfg = self.config
        area = rng.uniform(cfg.min_area, 1.0)
        ratio = np.exp(rng.uniform(-1, 1) * np.log(cfg.max_ratio))
        width = min(picture.width, max(1, round(picture.width * np.sqrt(area * ratio))))
        height = min(picture.height, max(1, round(picture.height * np.sqrt(area / ratio))))
        left = int(rng.integers(picture.width - width + 1))
        top = int(rng.integers(picture.height - height + 1))
        return picture.crop((left, top, left + width, top + height))


class RandomShift(Augment):
    """Moves the picture by a random distance; what comes in at a side is black."""

    @config
    class Config(Augment.Config):
        """How far.

        Attributes:
            max_fraction: Of the width or the height, at most.
        """

        max_fraction: Fraction = 0.1

    def apply(self, picture: Picture, rng: np.random.Generator) -> Picture:
        """Return the picture at another place."""
        limits = np.round(np.array(picture.size) * self.config.max_fraction).astype(int)
        left, top = (int(rng.integers(-limit, limit + 1)) for limit in limits)
        return picture.crop((left, top, left + picture.width, top + picture.height))


class RandomFlip(Augment):
    """Mirrors half of the pictures from left to right."""

    @config
    class Config(Augment.Config):
        """Has no fields."""

    def apply(self, picture: Picture, rng: np.random.Generator) -> Picture:
        """Return the picture or its mirror image."""
        from PIL import ImageOps

        return ImageOps.mirror(picture) if rng.random() < 0.5 else picture


class Image(Feature):
    """The pixels of a picture, `[H, W, C]` bytes, red, green and blue; grey has one channel.

    A model normalises them, which costs less than to send floats to a device.
    """

    part_type = "image_url"

    @config
    class Config(Feature.Config):
        """Which picture, and how it is scaled.

        Attributes:
            field: Contains the file: `file` in a folder of pictures, the suffix in files as
                WebDataset writes them, a column in Parquet.
            height: H.
            width: W.
            num_channels: C: 3, or 1 for grey.
            fit: How another shape becomes H x W. `crop`: the middle of the picture, as much as has
                this shape. `pad`: all of it, with black at the sides. `stretch`: all of it.
            resample: How pixels between others are found.
            augment: What changes pictures in training, in this order.
            max_pixels: A picture of more is bad, and not decoded.
        """

        field: str = "file"
        height: PositiveInt = REQUIRED
        width: PositiveInt = REQUIRED
        num_channels: Literal[1, 3] = 3
        fit: Literal["crop", "pad", "stretch"] = "crop"
        resample: Literal["bicubic", "bilinear"] = "bicubic"
        augment: tuple[Augment.Config, ...] = ()
        max_pixels: PositiveInt = 50_000_000

    @cached_property
    def _augments(self) -> list[Augment]:
        return [one.build() for one in self.config.augment]

    @property
    def fields(self) -> tuple[str, ...]:
        """The file."""
        return (self.config.field,)

    def arrays(self) -> Mapping[str, FeatureArray]:
        """Return the pixels."""
        cfg = self.config
        return {"": FeatureArray((cfg.height, cfg.width, cfg.num_channels), "uint8")}

    def check(self, record: Mapping[str, Any]) -> None:
        """Check that the picture can be decoded, without a warning."""
        with warnings_as_errors():
            self.make(record, None)

    def make(
        self, record: Mapping[str, Any], rng: np.random.Generator | None
    ) -> Mapping[str, NDArray[Any]]:
        """Return the pixels of the scaled picture."""
        cfg = self.config
        mode = "L" if cfg.num_channels == 1 else "RGB"
        content = file_content(record[cfg.field])
        picture = decode_image(content, mode=mode, max_pixels=cfg.max_pixels)
        if rng is not None:
            for augment in self._augments:
                picture = augment.apply(picture, rng)
        size = (cfg.width, cfg.height)
        pixels = np.asarray(scaled(picture, size, cfg.fit, cfg.resample), np.uint8)
        return {"": pixels.reshape(cfg.height, cfg.width, cfg.num_channels)}

    def media(self, arrays: Mapping[str, NDArray[Any]]) -> Media:
        """Return the pixels as PNG, made smaller where a page would not show all of them."""
        from PIL import Image

        pixels = arrays[""]
        picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
        picture.thumbnail((_SHOWN, _SHOWN))
        file = io.BytesIO()
        picture.save(file, "PNG")
        return Media(mime="image/png", content=file.getvalue())


def image_feature(encoder: Any) -> Image.Config:
    """Return the feature that decodes a picture for an encoder.

    Args:
        encoder: The config of an `ImageEncoder`.
    """
    channels: Any = encoder.patches.num_channels
    return Image.Config(height=encoder.height, width=encoder.width, num_channels=channels)


_SHOWN = 256
"""Pixels of a side of a picture in a page, at most."""


def scaled(picture: Picture, size: tuple[int, int], fit: str, resample: str = "bicubic") -> Picture:
    """Return a picture of a size.

    Args:
        picture: An image of Pillow.
        size: Width and height.
        fit: As `Image.Config` has it.
        resample: As `Image.Config` has it.
    """
    from PIL import Image, ImageOps

    method = Image.Resampling[resample.upper()]
    if fit == "crop":
        return ImageOps.fit(picture, size, method)
    return ImageOps.pad(picture, size, method) if fit == "pad" else picture.resize(size, method)
