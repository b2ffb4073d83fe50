"""The config map of everything that is like a Llama, and how llama.cpp has that."""

from axcore.interop import (
    LLAMA_KEYS,
    SIZES,
    Choice,
    ConfigEntry,
    GGUFEntry,
    GGUFMap,
    GGUFRope,
    RopeFields,
    activation,
    interleaved_heads,
)
from axcore.models.head import TiedHead, UntiedHead

_HEADS = {False: UntiedHead.Config(), True: TiedHead.Config()}

LLAMA_LIKE: tuple[ConfigEntry, ...] = (
    *SIZES,
    activation("hidden_act", "silu"),
    Choice("tie_word_embeddings", "head", _HEADS, False),
    RopeFields(),
)


def llama_gguf(*more: GGUFEntry) -> GGUFMap:
    """Returns how llama.cpp has models like a Llama, of which it rotates neighbouring rows.

    Args:
        *more: What becomes of fields that not all of them have.
    """
    return GGUFMap(
        architecture="llama",
        entries=(*LLAMA_KEYS, GGUFRope(("linear", "llama3", "yarn")), *more),
        changes=(
            (r"\.q_proj\.", interleaved_heads("num_attention_heads")),
            (r"\.k_proj\.", interleaved_heads("num_key_value_heads")),
        ),
    )
