"""`ImagePixels`: images as tokens, one for each value of each pixel."""

import io
import warnings

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
        image = import_extra("PIL.Image", used_by="a data set of images", error=DataError)
        try:
            with warnings.catch_warnings(), image.open(self._raw(document)) as opened:
                warnings.simplefilter("error")  # do not train on images that Pillow warns of
                # Only the header has been read: a huge image is refused before its pixels take
                # memory.
                if opened.width * opened.height > cfg.max_pixels:
                    raise ValueError(f"it has {opened.width} x {opened.height} pixels")
                scaled = opened.convert("RGB").resize((cfg.width, cfg.height))
                return np.asarray(scaled, np.uint8)
        except Exception as error:  # decoders of many formats, which raise what they please
            raise DataError(
                f"Field {cfg.field!r} of {document.name} cannot be read as an image: {error}.",
                where=document.name,
            ) from error

    def _raw(self, document: Document) -> io.BytesIO:
        value = document.fields[self.config.field]
        if isinstance(value, dict):  # as Hugging Face's datasets store images
            value = value.get("bytes")
        if not isinstance(value, bytes):
            raise ValueError(f"it is a {type(value).__name__}, not bytes")
        return io.BytesIO(value)
