"""`EngineAdapters`: the adapters that requests to an engine may name, and their numbers."""

import hashlib
from collections.abc import Collection
from typing import NamedTuple

import attrs
import numpy as np

from axcore.config import suggest_names
from axcore.errors import ConfigError, RequestError
from axcore.inference.adapters import NO_ADAPTER, Adapter, factors_of
from axcore.inference.served_weights import AdapterFactors
from axcore.layers import KVCacheConfig


@attrs.frozen(eq=False)
class EngineAdapter:
    """An adapter as engines take it.

    Args:
        factors: Of its layers.
        digest: Of the factors: adapters with the same one correct alike.
    """

    factors: AdapterFactors
    digest: str

    @classmethod
    def of(cls, adapter: Adapter, room: KVCacheConfig) -> "EngineAdapter":
        """Returns an adapter for engines of some room.

        Raises:
            ConfigError: Its layers differ in scale, or have more than factors.
        """
        factors = factors_of(adapter, room)
        digest = hashlib.blake2b(digest_size=16)
        for path, pair in sorted(factors.items()):
            for name, array in zip(("down", "up"), map(np.asarray, pair), strict=True):
                digest.update(f"{path} {name} {array.dtype} {array.shape}\n".encode())
                digest.update(array.tobytes())
        return cls(factors, digest.hexdigest())


class NumberedAdapter(NamedTuple):
    """Where an engine has an adapter: its number, and the digest of its factors."""

    number: int
    digest: str


WITHOUT_ADAPTER = NumberedAdapter(NO_ADAPTER, "")
"""What requests are answered by that name none."""


class EngineAdapters:
    """Numbers of adapters by name; not for several threads.

    Args:
        most: Adapters there is room for.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, NumberedAdapter] = {}

    def find(self, name: str | None) -> NumberedAdapter:
        """Returns the adapter of a name; None names none.

        Raises:
            RequestError: There is none of that name.
        """
        if name is None:
            return WITHOUT_ADAPTER
        found = self._known.get(name)
        if found is None:
            known = suggest_names(name, self._known) if self._known else None
            raise RequestError(f"there is no adapter {name!r}", where="adapter", hint=known)
        return found

    def has(self, name: str, digest: str) -> bool:
        """Returns whether an adapter has this name and these factors."""
        found = self._known.get(name)
        return found is not None and found.digest == digest

    def free_number(self, name: str, used: Collection[int]) -> int:
        """Returns a number for an adapter, whose name another one may have until then.

        Args:
            name: Its name.
            used: Numbers of adapters that requests use.

        Raises:
            ConfigError: There is no room for one more.
        """
        taken = {one.number for known, one in self._known.items() if known != name}
        free = [number for number in range(self._most) if number not in taken.union(used)]
        if not free:
            raise ConfigError(
                f"there is room for {self._most} adapters, and all are in use",
                where="num_adapters",
                hint="remove one, or set num_adapters higher",
            )
        return free[0]

    def set(self, name: str, adapter: NumberedAdapter) -> None:
        """Gives an adapter a name; one that had it has none any more."""
        self._known[name] = adapter

    def remove(self, name: str) -> None:
        """Takes a name away.

        Raises:
            ConfigError: No adapter has it.
        """
        if name not in self._known:
            hint = suggest_names(name, self._known) if self._known else None
            raise ConfigError(f"there is no adapter {name!r}", hint=hint)
        del self._known[name]
