"""Weight maps: which of our arrays is which of theirs, and by what transform.

A map is a tuple of rules. Names on both sides may hold `{layer}` and `{expert}`; ours are paths in
the state as if nothing were stacked: `decoder.stack.layer.{layer}.attention.q.weight`. Layers are
numbered in the order in which tokens pass them, however stacks are nested.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import jax
import numpy as np

from axcore.errors import ModuleError
from axcore.interop.transforms import Same, Transform, Transpose
from axcore.module import ParamSpec
from axcore.module.param import Stacked

Shape = tuple[int, ...]
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_NESTED = re.compile(r"(?<=\.)layer\.(\d+(?:\.layer\.\d+)*)(?=\.)")
_BASE = re.compile(r"(?<=\.)base\.")
"""A layer that corrects another one holds it as its base, and is in its place."""
SHOWN = 12


@attrs.frozen
class Rule:
    """Some of our arrays are some of theirs, by a transform from ours to theirs."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transform: Transform = attrs.field(factory=Same)


WeightMap = tuple[Rule, ...]


def same(ours: str, theirs: str) -> Rule:
    """Returns the rule of an array that is the same on both sides."""
    return Rule((ours,), (theirs,))


def linear(ours: str, theirs: str) -> WeightMap:
    """Returns the rules of a linear layer: theirs has outputs first."""
    weight = Rule((f"{ours}.weight",), (f"{theirs}.weight",), Transpose())
    return (weight, same(f"{ours}.bias", f"{theirs}.bias"))


def below(ours: str, theirs: str, rules: Iterable[Rule]) -> WeightMap:
    """Returns rules with a prefix on each side."""
    return tuple(
        attrs.evolve(
            rule,
            ours=tuple(f"{ours}.{name}" for name in rule.ours),
            theirs=tuple(f"{theirs}.{name}" for name in rule.theirs),
        )
        for rule in rules
    )


@attrs.frozen
class Slice:
    """An array of ours: a leaf of the state, or one place of the dimensions stacked in it."""

    leaf: str
    index: tuple[int, ...]


@attrs.frozen
class Piece:
    """What a rule says of one layer or expert.

    Args:
        ours: Our arrays.
        theirs: The names of theirs.
        shapes: The shapes of theirs.
        transform: From ours to theirs.
    """

    ours: tuple[Slice, ...]
    theirs: tuple[str, ...]
    shapes: tuple[Shape, ...]
    transform: Transform


class BoundMap:
    """A weight map, applied to the state of one model; every array of it is in one piece.

    Attributes:
        specs: The specs of the state, by name.
        pieces: In the order of the map, layer by layer.
    """

    def __init__(self, rules: WeightMap, specs: Any, *, ignored: Sequence[str] = ()) -> None:
        """Applies a map.

        Args:
            rules: The map.
            specs: `module.param_specs()`.
            ignored: Regular expressions of arrays of ours that only training needs.

        Raises:
            ModuleError: Listing the arrays that no rule fits.
        """
        self.specs = {name: spec for name, spec in named_specs(specs) if not _is_any(ignored, name)}
        self.pieces = tuple(_pieces(rules, self.specs))
        _check_each_once(self.pieces)

    @cached_property
    def shapes(self) -> dict[str, Shape]:
        """The shapes of all of their tensors, by name."""
        return {
            name: shape
            for piece in self.pieces
            for name, shape in zip(piece.theirs, piece.shapes, strict=True)
        }

    @cached_property
    def piece_of(self) -> dict[Slice, Piece]:
        """The piece that each of our arrays is in."""
        return {one: piece for piece in self.pieces for one in piece.ours}

    def num_stacked(self, leaf: str) -> int:
        """Returns how many leading dimensions of a leaf are of stacked modules."""
        steps = self.specs[leaf].path
        return sum(len(step.shape) for step in steps if isinstance(step, Stacked))


def named_specs(specs: Any) -> list[tuple[str, ParamSpec]]:
    """Returns the specs of a state, each with its path in it as a name, as checkpoints have it."""
    found = jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    return [(".".join(map(str, spec.state_path)), spec) for spec in found]


def listed(names: Iterable[str]) -> str:
    """Returns names for an error, those beyond the first dozen counted."""
    every = list(names)
    rest = len(every) - SHOWN
    return "\n".join(every if rest <= 0 else [*every[:SHOWN], f"... and {rest} more"])


def _pieces(rules: WeightMap, specs: Mapping[str, ParamSpec]) -> Iterator[Piece]:
    arrays: dict[str, dict[tuple[str, ...], Slice]] = {}
    for name, one in _numbered(specs).items():
        arrays.setdefault(_NUMBER.sub("#", name), {})[tuple(_NUMBER.findall(name))] = one
    fitted: set[Slice] = set()
    for rule in rules:
        patterns = [_PLACEHOLDER.sub("#", name) for name in rule.ours]
        found = [arrays.get(pattern, {}) for pattern in patterns]
        for numbers in found[0]:
            if all(numbers in one for one in found):
                piece = _piece(rule, numbers, [one[numbers] for one in found], specs)
                fitted.update(piece.ours)
                yield piece
    unfit = [name for name, found in arrays.items() if not fitted.issuperset(found.values())]
    if unfit:
        raise ModuleError(
            f"no rule of the weight map fits {len(unfit)} arrays of the model:\n"
            + listed(sorted(unfit)),
            hint="the family's published models have no such arrays; take out what was added",
        )


def _piece(
    rule: Rule, numbers: tuple[str, ...], ours: list[Slice], specs: Mapping[str, ParamSpec]
) -> Piece:
    values = dict(zip(_PLACEHOLDER.findall(rule.ours[0]), numbers, strict=True))
    shapes = tuple(specs[one.leaf].shape[len(one.index) :] for one in ours)
    theirs = tuple(name.format(**values) for name in rule.theirs)
    return Piece(tuple(ours), theirs, _shapes_after(rule.transform, shapes), rule.transform)


def _shapes_after(transform: Transform, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    known = _SHAPES.get((transform, shapes))
    if known is None:
        before = tuple(jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)  # type: ignore[no-untyped-call]
        known = tuple(one.shape for one in jax.eval_shape(transform, before))
        _SHAPES[transform, shapes] = known
    return known


_SHAPES: dict[tuple[Transform, tuple[Shape, ...]], tuple[Shape, ...]] = {}


def _numbered(specs: Mapping[str, ParamSpec]) -> dict[str, Slice]:
    """Returns our arrays by name, nested stacks of layers numbered through from first to last."""
    named = {
        name: Slice(leaf, index) for leaf, spec in specs.items() for name, index in _places(spec)
    }
    nested = {found[1] for name in named if (found := _NESTED.search(name))}
    rank = {text: str(i) for i, text in enumerate(sorted(nested, key=_numbers))}
    return {
        _NESTED.sub(lambda found: f"layer.{rank[found[1]]}", name, count=1): one
        for name, one in named.items()
    }


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _places(spec: ParamSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields each array that is stacked in a leaf: its name as if it were not, and its index."""
    names = (_BASE.sub("", ".".join(map(str, path))) for path in spec.rng_paths())
    stacked = (size for step in spec.path if isinstance(step, Stacked) for size in step.shape)
    return zip(names, np.ndindex(*stacked), strict=True)


def _check_each_once(pieces: Sequence[Piece]) -> None:
    counts = Counter(one for piece in pieces for one in piece.ours)
    names = Counter(name for piece in pieces for name in piece.theirs)
    twice = [str(one) for one, count in [*counts.items(), *names.items()] if count > 1]
    if twice:
        raise ModuleError(f"the weight map has {len(twice)} arrays twice:\n{listed(twice)}")


def _is_any(patterns: Sequence[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)
