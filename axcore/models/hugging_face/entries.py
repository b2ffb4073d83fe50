"""The config map of everything that is like a Llama."""

from axcore.interop import SIZES, Choice, ConfigEntry, RopeFields, activation
from axcore.models.head import TiedHead, UntiedHead

_HEADS = {False: UntiedHead.Config(), True: TiedHead.Config()}

LLAMA_LIKE: tuple[ConfigEntry, ...] = (
    *SIZES,
    activation("hidden_act", "silu"),
    Choice("tie_word_embeddings", "head", _HEADS, False),
    RopeFields(),
)
