"""The families of published models that the core's layers make."""

from collections.abc import Iterator

from axcore.plugins import HuggingFaceFamily, Ref, hook


@hook.hugging_face_families
def hugging_face_families() -> Iterator[HuggingFaceFamily]:
    """Published models that the core's layers make."""
    for name, target, summary in (
        (
            "llama",
            "axcore.models.hugging_face.llama:LLAMA",
            "Llama 1 to 3.2, and what is published in their form",
        ),
        ("mistral", "axcore.models.hugging_face.mistral:MISTRAL", "Mistral"),
        ("mixtral", "axcore.models.hugging_face.mixtral:MIXTRAL", "Mixtral"),
        ("qwen2", "axcore.models.hugging_face.qwen2:QWEN2", "Qwen2 and Qwen2.5"),
    ):
        yield HuggingFaceFamily(name=name, family=Ref(target), summary=summary)
