"""`ImagePixels`: images as tokens, one for each value of each pixel."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np

from axcore.config import PositiveInt, config
from axcore.data.document import Document
from axcore.data.transforms.transform import Dropped, Transform, TransformTools
from axcore.errors import DataError
from axcore.extras import import_extra


class ImagePixels(Transform):
    """Decodes an image, makes it of one size, and puts its pixels before the text.

    Tokens 0 to 255 are the red, green and blue values of each pixel, row by row.

    Source: Chen et al. 2020, "Generative Pretraining from Pixels".
    Differs: Values are not clustered into a palette.
    """

    @config
    class Config(Transform.Config):
        """Which image, and how large.

        Attributes:
            field: Of the record: in a tar, the suffix of the image's name, such as `jpg`.
            height: Rows of pixels, after scaling.
            width: Pixels of a row, after scaling.
            max_pixels: An image of more is bad, and not decoded.
        """

        field: str = "jpg"
        height: PositiveInt = 32
        width: PositiveInt = 32
        max_pixels: PositiveInt = 50_000_000

    replaces_text = True

    @property
    def fields(self) -> tuple[str, ...]:
        """The image."""
        return (self.config.field,)

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Return the image's pixels, and the text's tokens after them."""
        pixels = self._pixels(document).reshape(-1).astype(np.int64)
        text = tools.tokenizer.encode(document.text).astype(np.int64)
        tokens = tools.tokenizer.framed(np.concatenate([pixels, text]))
        return attrs.evolve(document, text="", tokens=tokens)

    def _pixels(self, document: Document) -> np.ndarray:
        cfg = self.config
        try:
            content = file_content(document.fields[cfg.field])
            with warnings_as_errors():
                image = decode_image(content, max_pixels=cfg.max_pixels)
        except ValueError as error:
            raise DataError(
                f"Field {cfg.field!r} of {document.name} cannot be read as an image: {error}.",
                where=document.name,
            ) from error
        return np.asarray(image.resize((cfg.width, cfg.height)), np.uint8)


@contextmanager
def warnings_as_errors() -> Iterator[None]:
    """Raise whatever decoders warn of, such as an image that is cut short; not in threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            yield
        except Warning as warning:
            raise ValueError(str(warning)) from warning


def file_content(value: Any) -> bytes:
    """Return the bytes of a file that a field contains, also as Hugging Face's datasets store it.

    Raises:
        ValueError: It contains something else.
    """
    if isinstance(value, dict):
        value = value.get("bytes")
    if not isinstance(value, bytes):
        raise ValueError(f"it is a {type(value).__name__}, not bytes")
    return value


# Pillow has decoders that run other programs, as for EPS; files may come from anybody.
_FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""What is decoded."""


def decode_image(content: bytes, *, mode: str = "RGB", max_pixels: int = 50_000_000) -> Any:
    """Return an image of Pillow, decoded and turned as its camera was held.

    Args:
        content: A file: BMP, GIF, JPEG, JPEG 2000, PNG, PPM, TIFF or WebP.
        mode: `RGB`, or `L` for one channel.
        max_pixels: One of more is not decoded.

    Raises:
        ValueError: It cannot be decoded, or is too large.
    """
    image = import_extra("PIL.Image", used_by="a data set of images", error=DataError)
    turned = import_extra("PIL.ImageOps", used_by="a data set of images", error=DataError)
    try:
        with image.open(io.BytesIO(content), formats=_FORMATS) as opened:
            # Only the header has been read: a huge image is refused before its pixels take memory.
            if opened.width * opened.height > max_pixels:
                raise ValueError(f"it has {opened.width} x {opened.height} pixels")
            return turned.exif_transpose(opened).convert(mode)
    except image.UnidentifiedImageError:  # its text names an object of Python
        raise ValueError(f"it is none of {', '.join(_FORMATS)}") from None
    except Exception as error:  # decoders of many formats, which raise what they please
        raise ValueError(str(error) or type(error).__name__) from error
