"""`Call`: what an op is asked for, without the arrays. Kernels say whether they accept it."""

from collections.abc import Mapping

import attrs
from jax import Array

Feature = bool | int | float | str | None


@attrs.frozen(kw_only=True)
class Call:
    """An abstract call: hashable, so choices can be kept by it and made anywhere.

    Args:
        op: The op's name.
        shapes: Shape by array name; arrays that the call lacks are not in it.
        dtypes: Dtype name by array name.
        features: The op's static choices by name.
    """

    op: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    dtypes: tuple[tuple[str, str], ...] = ()
    features: tuple[tuple[str, Feature], ...] = ()

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
        )

    def has(self, array: str) -> bool:
        """Return whether the call has that array."""
        return array in dict(self.shapes)

    def shape(self, array: str) -> tuple[int, ...]:
        """Return the shape of an array that the call has."""
        return dict(self.shapes)[array]

    def dtype(self, array: str) -> str:
        """Return the dtype name of an array that the call has."""
        return dict(self.dtypes)[array]

    def feature(self, name: str) -> Feature:
        """Return one of the op's static choices."""
        return dict(self.features)[name]

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
