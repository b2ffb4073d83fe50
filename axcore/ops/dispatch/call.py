"""`Call`: what an op is asked for, without the arrays. Kernels say whether they accept it."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import attrs
from jax import Array

from axcore.config import suggest_names
from axcore.errors import KernelError

Feature = bool | int | float | str | None

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class Call:
    """An abstract call: hashable, so choices can be kept by it and made anywhere.

    Args:
        op: The op's name.
        shapes: Shape by array name; arrays that the call lacks are not in it.
        dtypes: Dtype name by array name.
        features: The op's static choices by name.
        absent: Arrays that the op knows and the call lacks; None where nobody said.
    """

    op: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    dtypes: tuple[tuple[str, str], ...] = ()
    features: tuple[tuple[str, Feature], ...] = ()
    absent: tuple[str, ...] | None = attrs.field(default=None, eq=False)

    @classmethod
    def of(
        cls, op: str, arrays: Mapping[str, Array | None], features: Mapping[str, Feature]
    ) -> "Call":
        """Return the abstract call of arrays (None where not given) and static choices."""
        given = {name: array for name, array in arrays.items() if array is not None}
        return cls(
            op=op,
            shapes=tuple((name, tuple(array.shape)) for name, array in given.items()),
            dtypes=tuple((name, array.dtype.name) for name, array in given.items()),
            features=tuple(features.items()),
            absent=tuple(name for name, array in arrays.items() if array is None),
        )

    def has(self, array: str) -> bool:
        """Return whether the call has that array.

        Raises:
            KernelError: The op knows no array of that name; a kernel that asks for it would
                ignore what it means.
        """
        given = dict(self.shapes)
        if array in given or self.absent is None or array in self.absent:
            return array in given
        raise self._unknown("array", array, (*given, *self.absent))

    def shape(self, array: str) -> tuple[int, ...]:
        """Return the shape of an array that the call has."""
        return self._of("array", array, dict(self.shapes))

    def dtype(self, array: str) -> str:
        """Return the dtype name of an array that the call has."""
        return self._of("array", array, dict(self.dtypes))

    def feature(self, name: str) -> Feature:
        """Return one of the op's static choices."""
        return self._of("feature", name, dict(self.features))

    def _of(self, what: str, name: str, known: Mapping[str, T]) -> T:
        if name in known:
            return known[name]
        raise self._unknown(what, name, known)

    def _unknown(self, what: str, name: str, known: Iterable[str]) -> KernelError:
        return KernelError(f"{self} has no {what} {name!r}; {suggest_names(name, known)}")

    def __str__(self) -> str:
        dtypes = dict(self.dtypes)
        arrays = [
            f"{name} {dtypes[name]}[{','.join(map(str, shape))}]" for name, shape in self.shapes
        ]
        features = [
            f"{name}={value}"
            for name, value in self.features
            if value is not None and value is not False
        ]
        return f"{self.op}({', '.join(arrays + features)})"
