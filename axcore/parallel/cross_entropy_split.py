"""How a kernel of cross-entropy is split over a mesh: tokens, and the vocabulary if it divides.

For kernels that the compiler cannot split by itself. What a `shard_map` around this has split
already stays as it is.
"""

import math
from collections.abc import Callable
from typing import Any

import attrs
import jax
from jax import Array
from jax.sharding import PartitionSpec

from axcore.ops import CrossEntropyInputs
from axcore.parallel.activations import active_mesh, current_rules, manual_axes
from axcore.parallel.rules import AnyMesh

Names = tuple[str, ...]


@attrs.frozen
class CrossEntropySplit:
    """The mesh axes over which one call is split; none outside of a mesh.

    Args:
        mesh: The mesh; None outside of one.
        leading: By leading dimension of the tokens.
        vocab: For the vocabulary.
    """

    mesh: AnyMesh | None
    leading: tuple[Names, ...]
    vocab: Names

    @classmethod
    def of(cls, inputs: CrossEntropyInputs, *, vocabulary_first: bool) -> "CrossEntropySplit":
        """Returns the split that the activation rules give; what does not divide stays whole."""
        mesh = active_mesh()
        sizes = inputs.targets_BT.shape
        if mesh is None or mesh.size == 1 or not set(mesh.axis_names) - manual_axes():
            return cls(None, ((),) * len(sizes), ())
        axes = ("batch", "time", *("none",) * len(sizes))[: len(sizes)]
        leading = tuple(_names(a, mesh, size) for a, size in zip(axes, sizes, strict=True))
        used = {name for names in leading for name in names}
        vocab = _names("vocab", mesh, inputs.w.shape[0 if vocabulary_first else 1])
        return cls(mesh, leading, tuple(name for name in vocab if name not in used))

    @property
    def tokens(self) -> Names:
        """All mesh axes that tokens are split over."""
        return tuple(name for names in self.leading for name in names)

    @property
    def first_word(self) -> Array | int:
        """Which of its equal parts of the vocabulary this device has; inside of `in_parts`."""
        return jax.lax.axis_index(self.vocab) if self.vocab else 0

    def by_token(self, *rest: None) -> Any:
        """Returns how arrays `[..., T]` are split, with more dimensions that are whole."""
        return _spec(*(names or None for names in self.leading), *rest)

    def by_word(self, *, vocabulary_first: bool) -> Any:
        """Returns how the output projection is split."""
        names = self.vocab or None
        return _spec(names, None) if vocabulary_first else _spec(None, names)

    def in_parts(self, fn: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """Returns `fn`, which every device computes for its own parts."""
        if self.mesh is None:
            return fn
        return jax.shard_map(
            fn,
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=set(self.mesh.axis_names) - manual_axes(),
            check_vma=False,
        )


def _names(axis: str, mesh: AnyMesh, size: int) -> Names:
    done = manual_axes()
    rule = current_rules().get(axis, ())
    names = tuple(name for name in rule if mesh.shape[name] > 1 and name not in done)
    return () if size % math.prod(mesh.shape[name] for name in names) else names


def _spec(*entries: Any) -> Any:
    return PartitionSpec(*entries)  # type: ignore[no-untyped-call]
