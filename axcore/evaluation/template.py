"""`fill`: text with the values of a sample in it."""

import re

from axcore.errors import DataError
from axcore.evaluation.sample import Sample

_FIELD = re.compile(r"\{(\w+)\}")


def fill(template: str, sample: Sample) -> str:
    """Returns a template with each `{name}` replaced by that value of a sample.

    Raises:
        DataError: The sample has no such value, or it is neither text nor a number.
    """
    return _FIELD.sub(lambda match: _text(sample, match[1]), template)


def _text(sample: Sample, name: str) -> str:
    value = sample.value(name)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{name!r} is {value!r:.40}; expected text or a number", where=sample.where)
    return str(value)
