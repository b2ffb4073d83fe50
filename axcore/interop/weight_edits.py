"""`WeightEdit`: what is done to weights before a run begins with them; configs that add up.

An edit sees arrays by name, as if no layer and no expert were stacked, and no numbers: it says
which array of the source each of the model's begins as. It is a modifier too, which adds itself to
those of `init_from`: `--modify 'pretrained(path=small)' --modify grow_vocabulary`.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, Self

import attrs

from axcore.config import (
    REQUIRED,
    config,
    evolve,
    field_names,
    is_config,
    map_config,
    replace_config,
    suggest_names,
    update_config,
    walk,
)
from axcore.config.paths import format_path, matches, parse_pattern
from axcore.errors import ConfigError
from axcore.interop.array_source import (
    GrownByMean,
    InterpolatedRows,
    Noise,
    Origin,
    RepeatedRows,
    Zeroed,
)
from axcore.interop.canonical import arranged, layers_of
from axcore.interop.weight_map import Shape
from axcore.layers import ScalarHead
from axcore.module import Module
from axcore.plugins import Hardware


@attrs.frozen
class CandidateArrays:
    """Arrays that a model may begin with.

    Args:
        arrays: Origins by the names that they have in the model.
        fresh: Names of arrays that are randomly initialized.
    """

    arrays: Mapping[str, Origin]
    fresh: frozenset[str] = frozenset()

    def mapped(self, change: Callable[[str, Origin], Origin]) -> Self:
        """Return the candidates with each origin changed."""
        return attrs.evolve(self, arrays={n: change(n, one) for n, one in self.arrays.items()})


@attrs.frozen
class ModelPair:
    """The model that weights are of, and the one that begins with them.

    Args:
        source: The config of the first.
        target: That of the second.
        shapes: The arrays of the second, by name.
    """

    source: Any
    target: Any
    shapes: Mapping[str, Shape]


@config
class WeightEdit(ABC):
    """Describes one edit of the weights that a run begins with."""

    explains: ClassVar[tuple[str, ...]] = ()
    """Globs of what may differ between the two models' configs because of the edit."""

    @abstractmethod
    def edited(self, candidates: CandidateArrays, models: ModelPair) -> CandidateArrays:
        """Return the candidates after the edit.

        Raises:
            ConfigError: There is nothing to edit.
        """

    def undone(self, target: Any, source: Any) -> Any:
        """Return the config of the model without what the edit has changed of the source's."""
        return target

    def changed(self, model: Any) -> Any:
        """Return the config of a base's model with what the edit itself decides; mostly nothing."""
        return model

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config whose initial weights are edited so, after all other edits.

        Raises:
            ConfigError: The run begins with no weights, or has the same edit already.
        """
        if cfg.init_from is None:
            raise ConfigError(
                f"{type(self).__qualname__} has no weights to edit",
                where="init_from",
                hint="name them before: --modify 'pretrained(path=...)' or 'from_run(path=...)'",
            )
        source = cfg.init_from
        # Edits run one after another, on what the ones before made: the same one again would take
        # what it made itself for the source's arrays.
        if self in source.edits:
            raise ConfigError(
                f"init_from has the edit {type(self).__qualname__} with these values already",
                where="init_from.edits",
                hint="apply it once",
            )
        return evolve(cfg, init_from=evolve(source, edits=(*source.edits, self)))

    def nothing(self, what: str, known: Any = (), *, name: str = "") -> ConfigError:
        """Return the error of an edit that has nothing to do."""
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

    def edited(self, candidates: CandidateArrays, models: ModelPair) -> CandidateArrays:
        """Return the arrays by their new names."""
        arrays = dict(candidates.arrays)
        for pattern, new in self.names.items():
            regex = re.compile(_regex(pattern))
            found = {name: match for name in arrays if (match := regex.fullmatch(name))}
            if not found:
                raise self.nothing(f"has {pattern!r}, which matches no array", arrays, name=pattern)
            # Taken out before the new ones are put in, so that a cycle of names works.
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
        return attrs.evolve(candidates, arrays=arrays)


@config
class GrowVocabulary(WeightEdit):
    """More tokens than the source has, which begin as the mean of all others."""

    explains: ClassVar[tuple[str, ...]] = ("vocab_size",)

    def edited(self, candidates: CandidateArrays, models: ModelPair) -> CandidateArrays:
        """Return tables and heads with as many tokens as the model has."""
        sizes = models.source.vocab_size, models.target.vocab_size
        if sizes[1] <= sizes[0]:
            raise self.nothing(
                f"has nothing to do: the vocabulary has {sizes[0]:,} tokens, and "
                f"that of the model {sizes[1]:,}"
            )

        def grown(name: str, origin: Origin) -> Origin:
            wanted = models.shapes.get(name, origin.shape)
            found = differing(origin.shape, wanted)
            # Both the dimension and both sizes: another
            # dimension may happen to have as many places.
            if [(origin.shape[i], wanted[i]) for i in found] != [sizes]:
                return origin
            return origin.changed(GrownByMean(found[0], sizes[1]), wanted)

        return candidates.mapped(grown)


def differing(old: Shape, new: Shape) -> list[int]:
    """Return the dimensions in which two shapes differ; none where they have not as many."""
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


_LAYER = re.compile(r"(?<=\.layer\.)\d+(?=\.)")
_EXPERT = re.compile(r"(?P<place>.+)\.\w+\.expert\.\d+\.(?P<rest>.+)")


@config
class StackDepth(WeightEdit):
    """A model of more layers than the source has, or of some of them.

    Source: Gong et al. 2019, "Efficient training of BERT by progressively stacking"; Wu et al.
    2024, arXiv:2401.02415, section 3.2, for copies that add nothing.

    Args:
        order: `stacked` repeats all layers in order, `interleaved` puts copies behind each layer.
        layers: Instead of an order, which layer of the source each layer of the model begins as.
        copies_add_nothing: Whether a layer that was there before in the order begins with outputs
            of zero, so that the deeper model computes what the source did.
        outputs: Globs of the arrays that are zero in such a copy.
    """

    order: Literal["stacked", "interleaved"] = "stacked"
    layers: tuple[int, ...] | None = None
    copies_add_nothing: bool = False
    outputs: tuple[str, ...] = ("**.attention.out.**", "**.feed_forward.**.down.**")

    def edited(self, candidates: CandidateArrays, models: ModelPair) -> CandidateArrays:
        """Return every layer of the model as the source's layer that it begins as."""
        order = self._order(_num_layers(candidates.arrays), _num_layers(models.shapes))
        by_layer: dict[int, list[str]] = {}
        for name in candidates.arrays:
            if match := _LAYER.search(name):
                by_layer.setdefault(int(match[0]), []).append(name)
        arrays = {name: one for name, one in candidates.arrays.items() if not _LAYER.search(name)}
        silent: dict[str, Origin] = {}
        for layer, origin in enumerate(order):
            # The first number alone, as an expert's comes later in the name.
            copies = {_LAYER.sub(str(layer), name, count=1): name for name in by_layer[origin]}
            found = {new: candidates.arrays[name] for new, name in copies.items()}
            # Only of a layer that was there before in the order: the first of them does the work.
            if self.copies_add_nothing and origin in order[:layer]:
                found = {new: self._silenced(new, one) for new, one in found.items()}
                silent |= found
            arrays |= found
        if self.copies_add_nothing:
            self._check_silence(silent)
        return attrs.evolve(candidates, arrays=arrays)

    def undone(self, target: Any, source: Any) -> Any:
        """Return the model with the source's layers, where its own are those in the order."""
        before, after = layers_of(source.decoder.stack), layers_of(target.decoder.stack)
        order = self._order(len(before), len(after))
        first = {origin: after[order.index(origin)] for origin in order}
        if any(layer != first[origin] for layer, origin in zip(after, order, strict=True)):
            return target  # so that the difference shows
        layers = [first.get(i, layer) for i, layer in enumerate(before)]
        return update_config(target, {"decoder.stack": arranged(layers)})

    def _order(self, before: int, after: int) -> tuple[int, ...]:
        order = self.layers
        if order is None:
            is_stacked = self.order == "stacked"
            order = tuple(i % before if is_stacked else i * before // after for i in range(after))
        wrong = [i for i in order if not 0 <= i < before]
        if len(order) != after or wrong:
            raise ConfigError(
                f"StackDepth has layers {list(order)}; the source has {before} layers, numbered "
                f"from 0, and the model {after}",
                where="init_from.edits",
                hint="name a layer of the source for each layer of the model",
            )
        return order

    def _silenced(self, name: str, origin: Origin) -> Origin:
        is_output = any(is_at(glob, name) for glob in self.outputs)
        return origin.changed(Zeroed()) if is_output else origin

    def _check_silence(self, silent: Mapping[str, Origin]) -> None:
        """Check that each glob names an output of a copy, and each part of a copy has one.

        A part is what a layer holds and has matrices: attention, a feed-forward, a mixer.
        """
        for glob in self.outputs:
            if silent and not any(is_at(glob, name) for name in silent):
                raise self.nothing(f"has outputs {glob!r}, which matches no array", silent)
        parts = {_part(name) for name, origin in silent.items() if len(origin.shape) > 1}
        ends = {_part(name) for name in silent if any(is_at(glob, name) for glob in self.outputs)}
        if loud := sorted(parts - ends):
            raise ConfigError(
                f"StackDepth has copies_add_nothing, but no output of {loud[0]} is among outputs "
                f"{list(self.outputs)}, so that a copy adds something",
                where="init_from.edits",
                hint=f"add a glob of its last arrays: '**.{loud[0].rpartition('.')[2]}.NAME.**'",
            )


@config
class Upcycle(WeightEdit):
    """A mixture of experts from a feed-forward, whose weights each expert begins with.

    Routers are randomly initialized. Where the weights of a token's experts add up to one, as they
    do by default, the model computes what the source did.

    Source: Komatsuzaki et al. 2022, arXiv:2212.05055, section 3.

    Args:
        noise: Deviation of noise on each expert, by the root mean square of its matrices.
        seed: Of the noise.
    """

    noise: float = 0.0
    seed: int = 0

    def edited(self, candidates: CandidateArrays, models: ModelPair) -> CandidateArrays:
        """Return experts and routers instead of feed-forwards."""
        noise = Noise(self.noise, self.seed) if self.noise else None
        found, places, used = {}, set(), set()
        for name in models.shapes:
            match = _EXPERT.fullmatch(name)
            dense = f"{match['place']}.{match['rest']}" if match else ""
            if match and name not in candidates.arrays and dense in candidates.arrays:
                found[name] = attrs.evolve(candidates.arrays[dense], noise=noise)
                places.add(match["place"])
                used.add(dense)
        if not found:
            raise self.nothing("finds no expert whose feed-forward is in the source")
        kept = {
            n: one for n, one in candidates.arrays.items() if n not in used or n in models.shapes
        }
        routers = {
            name
            for name in models.shapes
            if name not in candidates.arrays and name.partition(".router.")[0] in places
        }
        return CandidateArrays({**kept, **found}, candidates.fresh | (routers - found.keys()))

    def undone(self, target: Any, source: Any) -> Any:
        """Return the model with feed-forwards where the source has no mixture of experts."""
        mixed = {format_path(path) for path, node in walk(source) if _is_mixture(node)}
        if not mixed:
            return map_config(target, lambda node: node.expert if _is_mixture(node) else node)
        changes = {
            format_path(path): node.expert
            for path, node in walk(target)
            if _is_mixture(node) and format_path(path) not in mixed
        }
        return update_config(target, changes) if changes else target


@config
class ExtendPositions(WeightEdit):
    """A longer table of learned positions; rotary positions have none, and are a config's.

    Args:
        by: `repeat` leaves the positions that are there, and repeats them; `interpolate` spreads
            them over the longer row.
        at: Glob of the tables.
    """

    explains: ClassVar[tuple[str, ...]] = ("**.max_length",)

    by: Literal["repeat", "interpolate"] = "repeat"
    at: str = "**.positions"

    def edited(self, candidates: CandidateArrays, models: ModelPair) -> CandidateArrays:
        """Return tables with as many rows as the model has positions."""
        tables = [name for name in candidates.arrays if is_at(self.at, name)]
        if not tables:
            raise self.nothing(
                f"finds no table of positions at {self.at!r}; a model with rotary positions has "
                "none: change their config, and name it in init_from.may_differ"
            )
        kind = RepeatedRows if self.by == "repeat" else InterpolatedRows

        def extended(name: str, origin: Origin) -> Origin:
            wanted = models.shapes.get(name, origin.shape)
            is_longer = wanted[:1] > origin.shape[:1] and differing(origin.shape, wanted) == [0]
            return (
                origin.changed(kind(wanted[0]), wanted) if name in tables and is_longer else origin
            )

        extended_candidates = candidates.mapped(extended)
        if extended_candidates == candidates:
            raise self.nothing(f"has nothing to do: {', '.join(tables)} are not longer")
        return extended_candidates


_HEAD = "head"


@config
class FreshHead(WeightEdit):
    """Another head, which is randomly initialized; the source's is left out.

    As a modifier, and in a `BaseModel`, it puts the head into the model too.

    Args:
        head: Takes the place of the model's head; by default one for a reward model.
    """

    head: Module.Config = ScalarHead.Config()

    def changed(self, model: Any) -> Any:
        """Return a model's config with the head.

        Raises:
            ConfigError: The model has no head, or has this one already.
        """
        if _HEAD not in field_names(model):
            raise ConfigError(
                f"FreshHead has nothing to replace: {type(model).__qualname__} has no head",
                where="model",
                hint="language models have one, such as that of: axcore train tiny",
            )
        if type(model.head) is type(self.head):
            raise ConfigError(
                f"the model's head is a {type(self.head).__qualname__} already, and its weights "
                "would be lost",
                where="model.head",
                hint="to train it further, leave the edit out: --set 'init_from.edits=()'",
            )
        return replace_config(model, lambda _: True, self.head, at=_HEAD)

    def edited(self, candidates: CandidateArrays, models: ModelPair) -> CandidateArrays:
        """Return the arrays without those of the source's head."""
        arrays = {name: one for name, one in candidates.arrays.items() if not _is_of_head(name)}
        fresh = {name for name in models.shapes if _is_of_head(name)}
        return CandidateArrays(arrays, candidates.fresh | fresh)

    def undone(self, target: Any, source: Any) -> Any:
        """Return the model with the source's head."""
        return evolve(target, head=source.head)

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config whose model has the head."""
        changed = evolve(cfg, model=self.changed(cfg.model))
        return changed if cfg.init_from is None else super().apply(changed, hardware)


@config
class EncoderAlone(WeightEdit):
    """The weights of the source's `encoder`; all others are randomly initialized.

    The two models may be of different kinds: a classifier begins with the encoder of a masked
    language model, or with a DINOv2.
    """

    def edited(self, candidates: CandidateArrays, models: ModelPair) -> CandidateArrays:
        """Return the arrays of the encoder.

        Raises:
            ConfigError: The source has no encoder.
        """
        arrays = {name: one for name, one in candidates.arrays.items() if _is_of_encoder(name)}
        if not arrays:
            raise self.nothing("finds no encoder in the source")
        fresh = {name for name in models.shapes if not _is_of_encoder(name)}
        return CandidateArrays(arrays, candidates.fresh | fresh)

    def undone(self, target: Any, source: Any) -> Any:
        """Return the source with the model's encoder, which is all that must agree."""
        shared = {"dim", "encoder"} & set(field_names(target)) & set(field_names(source))
        return evolve(source, **{name: getattr(target, name) for name in shared})


def _is_of_encoder(name: str) -> bool:
    return name.partition(".")[0] == "encoder"


def _is_of_head(name: str) -> bool:
    return name.partition(".")[0] == _HEAD


def _part(name: str) -> str:
    """Return the path of what a layer holds, of which an array is."""
    layer = _LAYER.search(name)
    assert layer is not None, name
    return name[: layer.end() + 1] + name[layer.end() + 1 :].partition(".")[0]


def _num_layers(names: Iterable[str]) -> int:
    found = {int(match[0]) for name in names if (match := _LAYER.search(name))}
    if not found:
        raise ConfigError("StackDepth finds no layers", where="init_from.edits", hint="take it out")
    return max(found) + 1


def _is_mixture(node: Any) -> bool:
    return (
        is_config(getattr(node, "expert", None))
        and hasattr(node, "num_experts")
        and hasattr(node, "router")
    )
