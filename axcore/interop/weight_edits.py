"""`WeightEdit`: what is done to weights before a run begins with them; configs that add up.

An edit sees arrays by name, as if no layer and no expert were stacked, and no numbers: it says
which array of the source each of the model's begins as. It is a modifier too, which adds itself to
those of `init_from`: `--modify 'pretrained(path=small)' --modify grow_vocabulary`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import attrs

from axcore.config import REQUIRED, config, evolve, suggest_names
from axcore.config.paths import matches, parse_pattern
from axcore.errors import ConfigError
from axcore.interop.origins import GrownByMean, Origin
from axcore.interop.weight_map import Shape
from axcore.plugins import Hardware


@attrs.frozen
class Offer:
    """What a model may begin with.

    Args:
        arrays: Origins by the names that they have in the model.
        fresh: Names of arrays that begin as in a new model.
    """

    arrays: Mapping[str, Origin]
    fresh: frozenset[str] = frozenset()

    def mapped(self, change: Callable[[str, Origin], Origin]) -> Self:
        """Returns the offer with each origin changed."""
        return attrs.evolve(self, arrays={n: change(n, one) for n, one in self.arrays.items()})


@attrs.frozen
class Models:
    """The model that weights are of, and the one that begins with them.

    Args:
        theirs: The config of the first.
        ours: That of the second.
        shapes: The arrays of the second, by name.
    """

    theirs: Any
    ours: Any
    shapes: Mapping[str, Shape]


@config
class WeightEdit(ABC):
    """Describes one edit of the weights that a run begins with."""

    explains: ClassVar[tuple[str, ...]] = ()
    """Globs of what may differ between the two models' configs because of the edit."""

    @abstractmethod
    def edited(self, offer: Offer, models: Models) -> Offer:
        """Returns what is on offer after the edit.

        Raises:
            ConfigError: There is nothing to edit.
        """

    def undone(self, ours: Any, theirs: Any) -> Any:
        """Returns the config of the model without what the edit has changed of the source's."""
        return ours

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns a trainer's config whose first weights are edited so, after all other edits.

        Raises:
            ConfigError: The run begins with no weights.
        """
        if cfg.init_from is None:
            raise ConfigError(
                f"{type(self).__qualname__} has no weights to edit",
                where="init_from",
                hint="name them before: --modify 'pretrained(path=...)' or 'from_run(path=...)'",
            )
        source = cfg.init_from
        return evolve(cfg, init_from=evolve(source, edits=(*source.edits, self)))

    def nothing(self, what: str, known: Any = (), *, name: str = "") -> ConfigError:
        """Returns the error of an edit that has nothing to do."""
        return ConfigError(
            f"{type(self).__qualname__} {what}",
            where="init_from.edits",
            hint=suggest_names(name, known) if known else "take it out",
        )


def is_at(glob: str, name: str) -> bool:
    """Whether a glob matches an array's path: `**.attention.**`, or `decoder.stack.layer[0].**`."""
    steps = tuple(int(step) if step.isdigit() else step for step in name.split("."))
    return matches(parse_pattern(glob), steps)


@config
class RenameWeights(WeightEdit):
    """Arrays of the source under other names.

    Args:
        names: From a name, in which `{word}` is anything, to what it becomes:
            `{"trunk.{rest}": "decoder.stack.{rest}"}`.
    """

    names: Mapping[str, str] = REQUIRED

    def edited(self, offer: Offer, models: Models) -> Offer:
        """Returns the arrays by their new names."""
        arrays = dict(offer.arrays)
        for pattern, new in self.names.items():
            regex = re.compile(_regex(pattern))
            found = {name: match for name in arrays if (match := regex.fullmatch(name))}
            if not found:
                raise self.nothing(f"has {pattern!r}, which matches no array", arrays, name=pattern)
            moved = {_filled(new, match): arrays.pop(name) for name, match in found.items()}
            doubled = sorted(moved.keys() & arrays.keys())
            if len(moved) < len(found) or doubled:
                raise ConfigError(
                    f"{pattern!r} -> {new!r} gives several arrays one name: "
                    f"{(doubled or sorted(moved))[0]}",
                    where="init_from.edits",
                    hint="write every {word} of the old name in the new one too",
                )
            arrays |= moved
        return attrs.evolve(offer, arrays=arrays)


@config
class GrowVocabulary(WeightEdit):
    """More tokens than the source has, which begin as the mean of all others."""

    explains: ClassVar[tuple[str, ...]] = ("vocab_size",)

    def edited(self, offer: Offer, models: Models) -> Offer:
        """Returns tables and heads with as many tokens as the model has."""
        sizes = models.theirs.vocab_size, models.ours.vocab_size
        if sizes[1] <= sizes[0]:
            raise self.nothing(
                f"has nothing to do: the vocabulary has {sizes[0]:,} tokens, and "
                f"that of the model {sizes[1]:,}"
            )

        def grown(name: str, origin: Origin) -> Origin:
            wanted = models.shapes.get(name, origin.shape)
            found = differing(origin.shape, wanted)
            if [(origin.shape[i], wanted[i]) for i in found] != [sizes]:
                return origin
            return origin.changed(GrownByMean(found[0], sizes[1]), wanted)

        return offer.mapped(grown)


def differing(old: Shape, new: Shape) -> list[int]:
    """Returns the dimensions in which two shapes differ; none where they have not as many."""
    if len(old) != len(new):
        return []
    return [i for i, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]]


def _regex(pattern: str) -> str:
    parts = re.split(r"\{(\w+)\}", pattern)
    words = parts[1::2]
    if len(set(words)) < len(words):
        raise ConfigError(f"{pattern!r} has a word in braces twice", where="init_from.edits")
    return "".join(f"(?P<{part}>.+)" if i % 2 else re.escape(part) for i, part in enumerate(parts))


def _filled(new: str, match: "re.Match[str]") -> str:
    try:
        return new.format(**match.groupdict())
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(
            f"{new!r} cannot be filled in: {error!r}",
            where="init_from.edits",
            hint=f"the old name has {', '.join(match.groupdict()) or 'no {word}'}",
        ) from error
