"""`Pretrained`: begins a run with published weights."""

from typing import ClassVar

from axcore.config import config
from axcore.interop import HuggingFace, WeightSource
from axcore.modifiers.first_weights import FirstWeights


@config
class Pretrained(FirstWeights):
    """Begins a run with the weights of a pretrained checkpoint.

    Edits of them are further modifiers, `grow_vocabulary` for one.

    Args:
        path: The folder that holds it.
        allow_unknown_fields: Whether fields of its `config.json` that could matter are ignored.
    """

    source: ClassVar[type[WeightSource]] = HuggingFace

    allow_unknown_fields: bool = False
