"""Modifiers of pictures: a language model of text reads them, or reads them in another size."""

from typing import Any, Literal

from axcore.config import PositiveInt, config, evolve, update_config
from axcore.data import ByteTokenizer, ChatText, ExampleData, SampleFiles
from axcore.errors import ConfigError
from axcore.layers import num_soft_tokens_of
from axcore.models import CausalLM, MultimodalLM, multimodal
from axcore.plugins import Hardware
from axl_vision.grid_tokens import GridTokens
from axl_vision.image_tokens import ImageTokens
from axl_vision.models.qwen2_5_vl import with_picture_size
from axl_vision.models.vit import vit

_MARK = "<image>"


@config
class Pictures:
    """Pictures in every row: `--modify 'pictures(folder=photos)'`.

    The encoder begins with random weights, and is trained with the model. Each picture has a
    conversation about it in a file of JSON next to it; see `ChatText`.

    Args:
        folder: Of the pictures.
        glob: Which of its files are pictures.
        field: Ends the name of the file with a picture's conversation.
        size: Of the vision transformer, as `vit` takes it.
        image_size: Height and width that a picture gets.
        patch_size: Height and width of what becomes a token.
    """

    folder: str = "pictures"
    glob: str = "*/*.png"
    field: str = "json"
    size: Literal["tiny", "small", "base", "large", "huge", "toy"] = "base"
    image_size: PositiveInt = 224
    patch_size: PositiveInt = 16

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config whose model reads pictures, and whose data has some.

        Raises:
            ConfigError: The model is not a language model, or reads other inputs already.
        """
        model, data = cfg.model, cfg.data
        tokenizer, length = getattr(data, "tokenizer", None), getattr(data, "seq_len", None)
        if (
            not isinstance(model, CausalLM.Config)
            or isinstance(model, MultimodalLM.Config)
            or tokenizer is None
            or length is None
        ):
            raise ConfigError(
                f"no language model of text is in the config: the model is a "
                f"{type(model).__qualname__}, the data {type(data).__qualname__}",
                where="model",
                hint="modify one that has a CausalLM and text, such as that of: axcore train tiny",
            )
        if isinstance(tokenizer, ByteTokenizer.Config):
            tokenizer = evolve(tokenizer, special_tokens=(*tokenizer.special_tokens, _MARK))
        encoder = ImageTokens.Config(
            encoder=vit(
                self.size, num_classes=1, image_size=self.image_size, patch_size=self.patch_size
            ).encoder
        )
        count = encoder.encoder.num_patches
        chat = ChatText.Config(
            field=self.field,
            tokenizer=tokenizer,
            length=length,
            soft_token=_MARK,
            num_soft_tokens=count,
        )
        return evolve(
            cfg,
            model=multimodal(model, encoder, num_soft_tokens=count),
            data=ExampleData.Config(
                source=SampleFiles.Config(folder=self.folder, glob=self.glob),
                features={"image": encoder.input_feature(), "chat": chat},
                batch_size=data.batch_size,
            ),
        )


@config
class PictureSize:
    """Pictures of another size, with the same weights: `--modify 'picture_size(width=896)'`.

    Args:
        height: In pixels.
        width: In pixels.
    """

    height: PositiveInt = 448
    width: PositiveInt = 448

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config whose model and data have pictures of this size.

        Raises:
            ConfigError: The model has positions for pictures of one size, or reads none.
        """
        model = cfg.model
        encoder = getattr(model, "encoder", None)
        if not isinstance(encoder, GridTokens.Config):
            raise ConfigError(
                f"the model's pictures have one size: its encoder is {type(encoder).__qualname__}",
                where="model.encoder",
                hint="encoders of other sizes are those of qwen2_5_vl and qwen3_vl",
            )
        made = with_picture_size(model, self.height, self.width)
        features = getattr(cfg.data, "features", {})
        changes: dict[str, Any] = {}
        if model.input_name in features:
            changes[f'features["{model.input_name}"]'] = made.encoder.input_feature()
        placed = num_soft_tokens_of(made.decoder.embedding)
        for name, feature in features.items():
            if isinstance(feature, ChatText.Config):
                changes[f'features["{name}"].num_soft_tokens'] = placed
        return evolve(cfg, model=made, data=update_config(cfg.data, changes))
