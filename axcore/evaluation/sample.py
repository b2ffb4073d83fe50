"""`Sample`: one question of a task as its source has it, and `SampleSource`, where samples are."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from axcore.config import Configurable, config
from axcore.errors import DataError


@attrs.frozen(kw_only=True)
class Sample:
    """A sample.

    Args:
        where: File and line, or another name that finds it again.
        fields: Its values by name.
    """

    where: str
    fields: Mapping[str, Any]

    def value(self, name: str) -> Any:
        """Returns a value.

        Raises:
            DataError: The sample has none of that name.
        """
        if name not in self.fields:
            known = ", ".join(sorted(self.fields)) or "none"
            raise DataError(f"it has no {name!r}; its fields are: {known}", where=self.where)
        return self.fields[name]


@attrs.frozen(kw_only=True)
class BadSample:
    """A record that is no sample.

    Args:
        where: File and line.
        reason: What is wrong with it.
    """

    where: str
    reason: str


class SampleSource(Configurable, ABC):
    """Where samples are, in an order that never changes."""

    @config
    class Config(Configurable.Config["SampleSource"]):
        """Describes a `SampleSource`."""

    @abstractmethod
    def samples(self) -> Iterator[Sample | BadSample]:
        """Yields the samples.

        Raises:
            DataError: They cannot be read at all.
        """
