"""The families of pretrained checkpoints that the core's layers make."""

from collections.abc import Iterator

from axcore.plugins import HuggingFaceFamily, Ref, hook


@hook.hugging_face_families
def hugging_face_families() -> Iterator[HuggingFaceFamily]:
    """Pretrained checkpoints that the core's layers make."""
    for name, target, summary in (
        ("bert", "axcore.models.bert:BERT", "BERT, which fills in masked tokens"),
        (
            "modernbert",
            "axcore.models.modernbert:MODERNBERT",
            "ModernBERT, which has a BERT's head",
        ),
        (
            "llama",
            "axcore.models.llama:LLAMA",
            "Llama 1 to 3.2, and what is published in their form",
        ),
        ("mistral", "axcore.models.mistral:MISTRAL", "Mistral"),
        ("mixtral", "axcore.models.mistral:MIXTRAL", "Mixtral"),
        ("qwen2", "axcore.models.qwen2:QWEN2", "Qwen2 and Qwen2.5"),
        ("t5", "axcore.models.t5:T5", "T5 and T5 1.1, which read a text and write one"),
    ):
        yield HuggingFaceFamily(name=name, family=Ref(target), summary=summary)
