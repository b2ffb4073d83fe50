"""Filters: documents by their length, text or fields, and the first of equal documents."""

import re
from functools import cached_property
from hashlib import blake2b
from typing import Any

import attrs

from axcore.config import REQUIRED, NonNegativeInt, PositiveInt, config
from axcore.data.document import Document
from axcore.data.packing.packing import plain_tokens
from axcore.data.transforms.transform import Dropped, Transform, TransformTools
from axcore.errors import ConfigError, DataError

_KEY_BYTES = 16
DUPLICATE = "equal to an earlier document"


class LengthFilter(Transform):
    """Keeps documents of some length, in characters; in tokens where they have no text."""

    @config
    class Config(Transform.Config):
        """How long.

        Attributes:
            min_length: The shortest that stays.
            max_length: The longest that stays; None for any.
        """

        min_length: NonNegativeInt = 0
        max_length: PositiveInt | None = None

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Leave out what is too short or too long."""
        cfg = self.config
        if len(document) < cfg.min_length:
            return Dropped(f"shorter than {cfg.min_length}")
        if cfg.max_length is not None and len(document) > cfg.max_length:
            return Dropped(f"longer than {cfg.max_length}")
        return document


class PatternFilter(Transform):
    """Keeps documents in which a regular expression is found, or those in which it is not."""

    @config
    class Config(Transform.Config):
        """Which text.

        Attributes:
            pattern: A regular expression of Python's `re`, found anywhere in the text.
            keeps: Whether documents with it stay, or those without.
        """

        pattern: str = REQUIRED
        keeps: bool = True

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        try:
            return re.compile(self.config.pattern)
        except re.error as error:
            raise ConfigError(
                f"{self.config.pattern!r} is not a regular expression: {error}",
                where="data.source.transforms",
            ) from error

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Leave out what the pattern says."""
        if bool(self._pattern.search(document.text)) == self.config.keeps:
            return document
        return Dropped(f"{'no ' if self.config.keeps else ''}match of {self.config.pattern!r}")


class FieldFilter(Transform):
    """Keeps documents whose record has some value in a field; a record without the field is bad."""

    @config
    class Config(Transform.Config):
        """Which field, and which values.

        Attributes:
            field: Of the record.
            equals: The text that it must be; None for any.
            min_value: The smallest number that stays; None for any value.
            max_value: The largest number that stays; None for any value.
        """

        field: str = REQUIRED
        equals: str | None = None
        min_value: float | None = None
        max_value: float | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The one that decides."""
        return (self.config.field,)

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Leave out what the field says."""
        cfg, value = self.config, document.fields[self.config.field]
        if cfg.equals is not None and value != cfg.equals:
            return Dropped(f"{cfg.field} is not {cfg.equals!r}")
        if cfg.min_value is not None and self._number(document, value) < cfg.min_value:
            return Dropped(f"{cfg.field} is less than {cfg.min_value:g}")
        if cfg.max_value is not None and self._number(document, value) > cfg.max_value:
            return Dropped(f"{cfg.field} is more than {cfg.max_value:g}")
        return document

    def _number(self, document: Document, value: Any) -> float:
        # nan compares as neither less nor more, and would pass any limits.
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise DataError(
                f"Field {self.config.field!r} of {document.name} is {value!r:.40}, not a number.",
                where=document.name,
            )
        return value


class Deduplicate(Transform):
    """Marks each document by a hash of 128 bits; whoever reads all of them leaves equal ones out.

    Documents are compared as they are where this transform is in the list.
    """

    @config
    class Config(Transform.Config):
        """What counts as equal.

        Attributes:
            ignores_case_and_space: Whether documents are equal that differ in upper and lower case
                and in white space only.
        """

        ignores_case_and_space: bool = False

    marks_duplicates = True

    def apply(self, document: Document, tools: TransformTools) -> Document | Dropped:
        """Add the key."""
        text = document.text
        if self.config.ignores_case_and_space:
            text = " ".join(text.casefold().split())
        # surrogatepass, for a text may contain half of a pair that a file's name brought.
        digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY_BYTES)
        if document.tokens is not None:
            digest.update(b"\0" + plain_tokens(document.tokens).astype("<i8").tobytes())
        return attrs.evolve(document, key=digest.digest())
