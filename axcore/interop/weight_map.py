"""Weight maps: which array of a model is which of Hugging Face's, and by what transform.

A map is a tuple of rules. Names on both sides may hold `{layer}` and `{expert}`. axcore's
are paths in the state as if nothing were stacked:
`decoder.stack.layer.{layer}.attention.q.weight`. A rule that makes one tensor of all experts names
each by its number. Layers are numbered in the order in which tokens pass them, however stacks are
nested.
"""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import jax
import numpy as np

from axcore.errors import ModuleError
from axcore.module import ParamSpec
from axcore.module.param import Stacked

Shape = tuple[int, ...]
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PLACE = re.compile(r"\{\w+\}|(?<=\.)\d+(?=\.)")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_NESTED = re.compile(r"(?<=\.)layer\.(\d+(?:\.layer\.\d+)*)(?=\.)")
_BASE = re.compile(r"(?<=\.)base\.")
"""An adapted layer holds the original as its base, and is in its place."""
SHOWN = 12


Arrays = tuple[Any, ...]


class Transform(ABC):
    """A one-to-one function of arrays, from axcore's to Hugging Face's."""

    @abstractmethod
    def __call__(self, arrays: Arrays) -> Arrays:
        """Return what becomes of the arrays."""

    @property
    @abstractmethod
    def inverse(self) -> "Transform":
        """The transform that undoes this one."""


@attrs.frozen
class Same(Transform):
    """Leaves arrays as they are."""

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return the arrays."""
        return arrays

    @property
    def inverse(self) -> Transform:
        """Itself."""
        return self


@attrs.frozen
class Transpose(Transform):
    """Swaps the two dimensions of each matrix."""

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return each matrix transposed."""
        return tuple(array.T for array in arrays)

    @property
    def inverse(self) -> Transform:
        """Itself."""
        return self


@attrs.frozen
class ReorderAxes(Transform):
    """Puts dimension `order[i]` of each array at place `i`."""

    order: tuple[int, ...]

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return each array with its dimensions in another order."""
        return tuple(array.transpose(self.order) for array in arrays)

    @property
    def inverse(self) -> Transform:
        """Put every dimension back."""
        return ReorderAxes(tuple(np.argsort(self.order).tolist()))


@attrs.frozen
class SplitAxis(Transform):
    """Splits one dimension of each array in two, of which the first has `count` places.

    Args:
        count: Places of the new dimension, heads usually.
        axis: The dimension, from the front.
    """

    count: int
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return each array with another dimension."""
        return tuple(
            array.reshape(*array.shape[: self.axis], self.count, -1, *array.shape[self.axis + 1 :])
            for array in arrays
        )

    @property
    def inverse(self) -> Transform:
        """Join the two dimensions."""
        return JoinAxes(self.count, self.axis)


@attrs.frozen
class JoinAxes(Transform):
    """Make one dimension of `axis`, which has `count` places, and the one behind it."""

    count: int
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return each array with a dimension less."""
        return tuple(
            array.reshape(*array.shape[: self.axis], -1, *array.shape[self.axis + 2 :])
            for array in arrays
        )

    @property
    def inverse(self) -> Transform:
        """Split the dimension again."""
        return SplitAxis(self.count, self.axis)


@attrs.frozen
class Permute(Transform):
    """Puts place `order[i]` of a dimension at place `i`."""

    order: tuple[int, ...]
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return each array in another order."""
        order = np.array(self.order)
        return tuple(_api(array).take(array, order, axis=self.axis) for array in arrays)

    @property
    def inverse(self) -> Transform:
        """Put every place back."""
        return Permute(tuple(np.argsort(self.order).tolist()), self.axis)


@attrs.frozen
class Concatenate(Transform):
    """Fuses arrays into one, along a dimension in which they have these sizes."""

    sizes: tuple[int, ...]
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return one array."""
        return (_api(arrays[0]).concatenate(arrays, axis=self.axis),)

    @property
    def inverse(self) -> Transform:
        """Split the array."""
        return Split(self.sizes, self.axis)


@attrs.frozen
class Split(Transform):
    """Splits one array into several of these sizes."""

    sizes: tuple[int, ...]
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return as many arrays as there are sizes, views of the one."""
        ends = np.cumsum(self.sizes).tolist()
        before = (slice(None),) * (self.axis % arrays[0].ndim)
        return tuple(
            arrays[0][(*before, slice(end - size, end))]
            for size, end in zip(self.sizes, ends, strict=True)
        )

    @property
    def inverse(self) -> Transform:
        """Fuses them again."""
        return Concatenate(self.sizes, self.axis)


@attrs.frozen
class StackArrays(Transform):
    """Make one array of each `count` arrays that follow each other, along a new dimension."""

    count: int
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return as many arrays as there are groups."""
        groups = (arrays[i : i + self.count] for i in range(0, len(arrays), self.count))
        return tuple(_api(group[0]).stack(group, axis=self.axis) for group in groups)

    @property
    def inverse(self) -> Transform:
        """Take the groups apart."""
        return UnstackArrays(self.count, self.axis)


@attrs.frozen
class UnstackArrays(Transform):
    """Make one array of each of the `count` places of a dimension."""

    count: int
    axis: int = 0

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return the arrays of the first one's places, then those of the second one's."""
        return tuple(
            array[(*(slice(None),) * (self.axis % array.ndim), i)]
            for array in arrays
            for i in range(self.count)
        )

    @property
    def inverse(self) -> Transform:
        """Stack them again."""
        return StackArrays(self.count, self.axis)


@attrs.frozen(init=False)
class Chain(Transform):
    """One transform after the other."""

    parts: tuple[Transform, ...]

    def __init__(self, *parts: Transform) -> None:
        self.__attrs_init__(parts)

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return what the last one makes of what those before it made."""
        for part in self.parts:
            arrays = part(arrays)
        return arrays

    @property
    def inverse(self) -> Transform:
        """Undoes the last one first."""
        return Chain(*(part.inverse for part in reversed(self.parts)))


def interleaved(rotated: int, *, kept: int = 0, rest: int = 0, axis: int = 0) -> Permute:
    """Return the permutation from half-split rotary rows to neighbouring pairs.

    Args:
        rotated: Rows that positions rotate; axcore pairs row `i` with `i + rotated / 2`.
        kept: Rows before them that stay in place.
        rest: Rows behind them that stay in place.
        axis: The dimension of the rows.
    """
    pairs = np.arange(rotated).reshape(2, -1).T.reshape(-1) + kept
    end = kept + rotated
    return Permute((*range(kept), *pairs.tolist(), *range(end, end + rest)), axis)


def _api(array: Any) -> Any:
    return array.__array_namespace__()


@attrs.frozen
class Rule:
    """Some arrays of a model are some of Hugging Face's, by a transform from axcore to hf."""

    axcore: tuple[str, ...]
    hf: tuple[str, ...]
    transform: Transform = attrs.field(factory=Same)


WeightMap = tuple[Rule, ...]


def same(axcore: str, hf: str) -> Rule:
    """Return the rule of an array that is the same on both sides."""
    return Rule((axcore,), (hf,))


def linear(axcore: str, hf: str) -> WeightMap:
    """Return the rules of a linear layer: Hugging Face's weight has outputs first."""
    weight = Rule((f"{axcore}.weight",), (f"{hf}.weight",), Transpose())
    return (weight, same(f"{axcore}.bias", f"{hf}.bias"))


def both(axcore: str, hf: str) -> WeightMap:
    """Return the rules of a weight and a bias that are the same on both sides, as a norm's are."""
    return tuple(same(f"{axcore}.{name}", f"{hf}.{name}") for name in ("weight", "bias"))


def convolution(axcore: str, hf: str, num_dims: int) -> WeightMap:
    """Return the rules of a convolution: Hugging Face's kernel has outputs and inputs first."""
    places = tuple(range(num_dims))
    weight = Rule(
        (f"{axcore}.weight",),
        (f"{hf}.weight",),
        ReorderAxes((num_dims + 1, num_dims, *places)),
    )
    return (weight, same(f"{axcore}.bias", f"{hf}.bias"))


def patches(axcore: str, hf: str, patch_size: int) -> WeightMap:
    """Return the rules of a `PatchEmbedding`'s projection, a convolution in Hugging Face's."""
    kernel = Chain(SplitAxis(patch_size, 0), SplitAxis(patch_size, 1), ReorderAxes((3, 2, 0, 1)))
    weight = Rule((f"{axcore}.weight",), (f"{hf}.weight",), kernel)
    return (weight, same(f"{axcore}.bias", f"{hf}.bias"))


def below(axcore: str, hf: str, rules: Iterable[Rule]) -> WeightMap:
    """Return rules with a prefix on each side."""
    return tuple(
        attrs.evolve(
            rule,
            axcore=tuple(f"{axcore}.{name}" for name in rule.axcore),
            hf=tuple(f"{hf}.{name}" for name in rule.hf),
        )
        for rule in rules
    )


def all_experts(
    path: str, names: tuple[str, ...], hf: str, transform: Transform, *, count: int
) -> Rule:
    """Return the rule of arrays of every expert that Hugging Face has as one.

    Args:
        path: Of the experts.
        names: Of one expert's arrays; those of the first come before those of the second.
        hf: Hugging Face's name.
        transform: From the arrays of all experts to Hugging Face's.
        count: How many experts there are.
    """
    axcore = tuple(f"{path}.{i}.{name}" for name in names for i in range(count))
    return Rule(axcore, (hf,), transform)


@attrs.frozen
class Slice:
    """An array of a model: a leaf of the state, or one place of the dimensions stacked in it."""

    leaf: str
    index: tuple[int, ...]


@attrs.frozen
class Piece:
    """What a rule says about one layer or expert.

    Args:
        axcore: The model's arrays.
        hf: The names of Hugging Face's.
        shapes: The shapes of Hugging Face's.
        transform: From axcore to hf.
    """

    axcore: tuple[Slice, ...]
    hf: tuple[str, ...]
    shapes: tuple[Shape, ...]
    transform: Transform


class BoundMap:
    """A weight map, applied to the state of one model; every array of it is in one piece.

    Attributes:
        specs: The specs of the state, by name.
        pieces: In the order of the map, layer by layer.
    """

    def __init__(self, rules: WeightMap, specs: Any, *, ignored: Sequence[str] = ()) -> None:
        """Apply a map.

        Args:
            rules: The map.
            specs: `module.param_specs()`.
            ignored: Regular expressions of arrays that only training needs.

        Raises:
            ModuleError: Listing the arrays that no rule fits.
        """
        self.specs = {name: spec for name, spec in named_specs(specs) if not is_any(ignored, name)}
        self.pieces = tuple(_pieces(rules, self.specs))
        _check_each_once(self.pieces)

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of all tensors of Hugging Face, by name."""
        return {
            name: shape
            for piece in self.pieces
            for name, shape in zip(piece.hf, piece.shapes, strict=True)
        }

    @cached_property
    def piece_of(self) -> dict[Slice, Piece]:
        """The piece that each array of the model is in."""
        return {one: piece for piece in self.pieces for one in piece.axcore}


def named_specs(specs: Any) -> list[tuple[str, ParamSpec]]:
    """Return the specs of a state, each with its path in it as a name, as checkpoints have it."""
    found = jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    return [(".".join(map(str, spec.state_path)), spec) for spec in found]


def listed(names: Iterable[str]) -> str:
    """Return names for an error, those beyond the first dozen counted."""
    every = list(names)
    rest = len(every) - SHOWN
    return "\n".join(every if rest <= 0 else [*every[:SHOWN], f"... and {rest} more"])


_Arrays = dict[str, dict[tuple[str, ...], Slice]]
"""By name, with # instead of each number, and by the numbers."""


def _pieces(rules: WeightMap, specs: Mapping[str, ParamSpec]) -> Iterator[Piece]:
    # By name without numbers, so that a rule finds its arrays by one look-up: a model may have
    # thousands of experts, and rules of all of them.
    arrays: _Arrays = {}
    for name, one in unstacked(specs).items():
        arrays.setdefault(_NUMBER.sub("#", name), {})[tuple(_NUMBER.findall(name))] = one
    fitted: set[Slice] = set()
    for rule in rules:
        for values in _matches(rule.axcore[0], arrays):
            axcore = [_find(name, arrays, values) for name in rule.axcore]
            if None not in axcore:
                piece = _piece(rule, values, [one for one in axcore if one], specs)
                fitted.update(piece.axcore)
                yield piece
    unfit = [name for name, found in arrays.items() if not fitted.issuperset(found.values())]
    if unfit:
        raise ModuleError(
            f"no rule of the weight map fits {len(unfit)} arrays of the model:\n"
            + listed(sorted(unfit)),
            hint="the family's pretrained checkpoints have no such arrays; take out what was added",
        )


def _matches(name: str, arrays: _Arrays) -> Iterator[dict[str, str]]:
    """Yield the numbers for the placeholders of a name, of each array that it fits."""
    places = _PLACE.findall(name)
    for numbers in arrays.get(_PLACE.sub("#", name), {}):
        pairs = list(zip(places, numbers, strict=True))
        if all(place == number for place, number in pairs if place.isdigit()):
            yield {place[1:-1]: number for place, number in pairs if not place.isdigit()}


def _find(name: str, arrays: _Arrays, values: Mapping[str, str]) -> Slice | None:
    """Return the array of a name with these numbers, if there is one."""
    numbers = _NUMBER.findall(name.format(**values))
    return arrays.get(_PLACE.sub("#", name), {}).get(tuple(numbers))


def _piece(
    rule: Rule, values: Mapping[str, str], axcore: list[Slice], specs: Mapping[str, ParamSpec]
) -> Piece:
    shapes = tuple(specs[one.leaf].shape[len(one.index) :] for one in axcore)
    hf = tuple(name.format(**values) for name in rule.hf)
    return Piece(tuple(axcore), hf, shapes_after(rule.transform, shapes), rule.transform)


def shapes_after(transform: Transform, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shapes of what a transform makes of arrays of some shapes."""
    # Layers repeat a few pairs of a transform and shapes, and tracing each again is slow.
    known = _SHAPES.get((transform, shapes))
    if known is None:
        before = tuple(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)  # type: ignore[no-untyped-call]
        known = tuple(one.shape for one in jax.eval_shape(transform, before))
        _SHAPES[transform, shapes] = known
    return known


_SHAPES: dict[tuple[Transform, tuple[Shape, ...]], tuple[Shape, ...]] = {}


def unstacked(specs: Mapping[str, ParamSpec]) -> dict[str, Slice]:
    """Return a model's arrays by name, nested stacks of layers numbered from first to last."""
    named = {
        name: Slice(leaf, index) for leaf, spec in specs.items() for name, index in _places(spec)
    }
    # By what is before them: an encoder's layers are counted apart from a decoder's.
    nested: dict[str, set[str]] = {}
    for name in named:
        if found := _NESTED.search(name):
            nested.setdefault(name[: found.start()], set()).add(found[1])
    rank = {
        (before, text): str(i)
        for before, texts in nested.items()
        for i, text in enumerate(sorted(texts, key=_numbers))
    }
    return {
        _NESTED.sub(
            lambda found: f"layer.{rank[found.string[: found.start()], found[1]]}", name, count=1
        ): one
        for name, one in named.items()
    }


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _places(spec: ParamSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each array that is stacked in a leaf: its name as if it were not, and its index."""
    names = (_BASE.sub("", ".".join(map(str, path))) for path in spec.rng_paths())
    stacked = (size for step in spec.path if isinstance(step, Stacked) for size in step.shape)
    return zip(names, np.ndindex(*stacked), strict=True)


def _check_each_once(pieces: Sequence[Piece]) -> None:
    counts = Counter(one for piece in pieces for one in piece.axcore)
    names = Counter(name for piece in pieces for name in piece.hf)
    twice = [str(one) for one, count in [*counts.items(), *names.items()] if count > 1]
    if twice:
        raise ModuleError(f"the weight map has {len(twice)} arrays twice:\n{listed(twice)}")


def is_any(patterns: Sequence[str], name: str) -> bool:
    """Whether one of some regular expressions is found in a name."""
    return any(re.search(pattern, name) for pattern in patterns)
