"""DiT: a transformer that generates pictures by class."""

from axcore.layers import PatchEmbedding, ScannedLayers
from axcore.models import Sizes, of_size
from axl_vision.diffusion import DiT, dit_layer

_SIZES: Sizes = {
    "small": {"dim": 384, "num_layers": 12, "num_heads": 6},
    "base": {"dim": 768, "num_layers": 12, "num_heads": 12},
    "large": {"dim": 1024, "num_layers": 24, "num_heads": 16},
    "xlarge": {"dim": 1152, "num_layers": 28, "num_heads": 16},
    "toy": {"dim": 96, "num_layers": 4, "num_heads": 4},
}


def dit(
    size: str,
    *,
    num_classes: int,
    image_size: int = 32,
    patch_size: int = 2,
    num_channels: int = 4,
) -> DiT.Config:
    """Return the config of a DiT: `small`, `base`, `large`, `xlarge` or `toy`.

    Args:
        size: Its name.
        num_classes: Number of classes.
        image_size: Height and width of what is generated.
        patch_size: Height and width of a patch.
        num_channels: Channels of what is generated: 1 or 3 of pixels, 4 of latents of an
            autoencoder.

    Source: Peebles and Xie 2022, arXiv:2212.09748, table 1.
    """
    sizes = of_size("dit", _SIZES, size)
    layer = dit_layer(num_heads=sizes["num_heads"], hidden_dim=4 * sizes["dim"])
    return DiT.Config(
        dim=sizes["dim"],
        height=image_size,
        width=image_size,
        num_classes=num_classes,
        patches=PatchEmbedding.Config(patch_size=patch_size, num_channels=num_channels),
        stack=ScannedLayers.Config(num_layers=sizes["num_layers"], layer=layer),
    )
