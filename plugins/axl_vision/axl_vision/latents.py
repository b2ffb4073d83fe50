"""`Latents`, a feature of data: what an autoencoder made of a picture, stored beside its label."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from axcore.config import REQUIRED, PositiveFloat, PositiveInt, config
from axcore.data import Feature, FeatureArray, file_content


class Latents(Feature):
    """The latents of a picture, `[H, W, C]` floats, read from a file as `numpy.save` writes it.

    An autoencoder of yours makes them once, before training; axcore has none.
    """

    @config
    class Config(Feature.Config):
        """Which latents.

        Attributes:
            field: Contains the file: the suffix in files as WebDataset writes them.
            height: H.
            width: W.
            num_channels: C.
            scale: Factor that brings them to about unit size, as noise has: 0.18215 of the
                autoencoder of Stable Diffusion.
        """

        field: str = "npy"
        height: PositiveInt = REQUIRED
        width: PositiveInt = REQUIRED
        num_channels: PositiveInt = 4
        scale: PositiveFloat = 1.0

    @property
    def fields(self) -> tuple[str, ...]:
        """The file."""
        return (self.config.field,)

    def arrays(self) -> Mapping[str, FeatureArray]:
        """Return the latents."""
        return {"": FeatureArray(self._shape, "float32")}

    def make(
        self, record: Mapping[str, Any], rng: np.random.Generator | None
    ) -> Mapping[str, NDArray[Any]]:
        """Return the scaled latents.

        Raises:
            ValueError: The file has no array of floats of this shape, or one that is not finite.
        """
        content = file_content(record[self.config.field])
        found = np.load(io.BytesIO(content), allow_pickle=False)
        if found.shape != self._shape or not np.issubdtype(found.dtype, np.floating):
            raise ValueError(
                f"its latents are {found.dtype} of shape {list(found.shape)}; expected floats of "
                f"shape {list(self._shape)}"
            )
        if not np.isfinite(found).all():
            raise ValueError("its latents have numbers that are not finite")
        return {"": found.astype(np.float32) * np.float32(self.config.scale)}

    @property
    def _shape(self) -> tuple[int, int, int]:
        cfg = self.config
        return cfg.height, cfg.width, cfg.num_channels
