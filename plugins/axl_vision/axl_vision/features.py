"""What `axcore loc` measures: how pictures are added to any language model."""

from typing import Any

from axcore.complexity import runs
from axcore.plugins import Hardware
from axl_vision.image_tokens import ImageTokens
from axl_vision.pictures import Pictures


def with_pictures(cfg: Any) -> Any:
    """Pictures of 32 x 32 pixels in every row."""
    return Pictures(size="toy", image_size=32).apply(cfg, Hardware.parse("cpu-1"))


has_pictures = runs(ImageTokens)
