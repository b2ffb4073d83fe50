"""`DataTokenizer`: the record of a tokenizer."""

from typing import ClassVar

import attrs

from axcore.registration.record import Record, record
from axcore.registration.ref import Ref
from axcore.registration.validators import a_name, of_type


@record(hook="tokenizers")
@attrs.frozen(kw_only=True)
class DataTokenizer(Record):
    """A tokenizer, which users ask for by name.

    Args:
        name: As a user asks for it.
        config: The Config class of a subclass of `axcore.data.Tokenizer`.
        summary: One line.

    Example:
        @hook.tokenizers
        def tokenizers():
            yield DataTokenizer(name="acme_letters", config=Ref("axl_acme.text:Letters.Config"),
                                summary="One token a letter")
    """

    kind: ClassVar[str] = "tokenizer"

    name: str = attrs.field(validator=a_name)
    config: Ref = attrs.field(validator=of_type(Ref))
    summary: str = attrs.field(validator=of_type(str))
