"""What axl-vision brings to axcore. Imports no jax."""

from collections.abc import Iterator

from axcore.plugins import (
    Command,
    Experiment,
    Feature,
    HuggingFaceFamily,
    ModelApi,
    Modifier,
    Ref,
    hook,
)


@hook.hugging_face_families
def hugging_face_families() -> Iterator[HuggingFaceFamily]:
    """Pretrained checkpoints of models of pictures."""
    for name, family, summary in (
        ("vit", "vit:VIT", "ViT, a classifier of pictures"),
        ("dinov2", "dinov2:DINOV2", "DINOv2, vectors of pictures that no labels were needed for"),
        (
            "dinov2_with_registers",
            "dinov2:DINOV2_WITH_REGISTERS",
            "DINOv2 with tokens of its own next to those of patches",
        ),
        ("clip", "clip:CLIP", "CLIP, pictures and texts in one space"),
        ("siglip", "siglip:SIGLIP", "SigLIP, the same with a loss of each pair"),
        ("llava", "llava:LLAVA", "LLaVA, a language model that reads pictures"),
        ("qwen2_5_vl", "qwen2_5_vl:QWEN2_5_VL", "Qwen2.5-VL, with positions on three axes"),
        ("qwen3_vl", "qwen3_vl:QWEN3_VL", "Qwen3-VL, which sees inner layers of its encoder"),
        ("qwen3_vl_moe", "qwen3_vl:QWEN3_VL_MOE", "Qwen3-VL with experts"),
    ):
        yield HuggingFaceFamily(
            name=name, family=Ref(f"axl_vision.models.{family}"), summary=summary
        )
    yield HuggingFaceFamily(
        name="gemma3_vision",
        family=Ref("axl_vision.models.gemma3_vision:GEMMA3_VISION"),
        instead_of="gemma3",
        summary="Gemma 3 from 4B on, which reads pictures",
    )


@hook.experiments
def experiments() -> Iterator[Experiment]:
    """Models of pictures that can be trained."""
    for name, function, summary in (
        ("digits", "digits", "A small ViT that reads handwritten digits; a minute on a laptop"),
        ("vit-l16", "vit_l16", "ViT-L/16, 304M parameters, on 1000 classes"),
        ("siglip-so400m", "siglip_so400m", "SigLIP-So400m/14, 877M parameters"),
        ("qwen2.5-vl-7b", "qwen2_5_vl_7b", "Qwen2.5-VL-7B, on conversations about pictures"),
        ("digits-chat", "digits_chat", "A small language model that answers about digits"),
        ("digits-clip", "digits_clip", "A small CLIP of digits and captions that name them"),
    ):
        yield Experiment(name=name, fn=Ref(f"axl_vision.experiments:{function}"), summary=summary)
    yield Experiment(
        name="digits-flow",
        fn=Ref("axl_vision.flow_experiments:digits_flow"),
        summary="A small DiT that draws handwritten digits; a few minutes on a laptop",
    )
    yield Experiment(
        name="dit-xl2",
        fn=Ref("axl_vision.flow_experiments:dit_xl2"),
        summary="DiT-XL/2, 675M parameters, of latents of 1000 classes",
    )


@hook.modifiers
def modifiers() -> Iterator[Modifier]:
    """What a language model of text can get."""
    yield Modifier(
        name="pictures",
        config=Ref("axl_vision.pictures:Pictures"),
        summary="A language model that reads pictures of a folder with conversations about them",
    )
    yield Modifier(
        name="picture_size",
        config=Ref("axl_vision.pictures:PictureSize"),
        summary="Pictures of another size, where no position is learned",
    )


@hook.features
def features() -> Iterator[Feature]:
    """The same, as `axcore loc` measures it."""
    yield Feature(
        name="pictures",
        apply=Ref("axl_vision.features:with_pictures"),
        evidence=Ref("axl_vision.features:has_pictures"),
        implementation=(
            "axl_vision.image_tokens:ImageTokens",
            "axl_vision.pictures:Pictures",
            "axl_vision.pooled_tokens",
        ),
        summary="Pictures as soft tokens of a language model",
    )


@hook.commands
def commands() -> Iterator[Command]:
    """Questions about pictures; and what `axcore generate` is for models that generate some."""
    yield Command(
        name="ask",
        fn=Ref("axl_vision.ask:command"),
        summary="Ask a trained run about pictures",
    )
    yield Command(
        name="generate-images",
        fn=Ref("axl_vision.generate:generate"),
        summary="Generate pictures from a trained run",
        generates=("axl_vision.diffusion:DiT.Config",),
    )


@hook.model_apis
def model_apis() -> Iterator[ModelApi]:
    """What `axcore serve` answers with a dual encoder."""
    yield ModelApi(
        name="text-embeddings",
        models=("axl_vision.dual_encoder:DualEncoder.Config",),
        fn=Ref("axl_vision.serving:endpoints"),
        summary="Vectors of texts and of pictures, to compare",
    )
