"""Weights for a model with more layers, with experts, or with more positions than the source's."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import attrs

from axcore.config import config, is_config, map_config, update_config, walk
from axcore.config.paths import format_path
from axcore.errors import ConfigError
from axcore.interop.layer_order import arranged, layers_of
from axcore.interop.origins import InterpolatedRows, Noise, Origin, RepeatedRows, Zeroed
from axcore.interop.weight_edits import Models, Offer, WeightEdit, differing, is_at

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

    def edited(self, offer: Offer, models: Models) -> Offer:
        """Returns every layer of the model as the source's layer that it begins as."""
        order = self._order(_num_layers(offer.arrays), _num_layers(models.shapes))
        by_layer: dict[int, list[str]] = {}
        for name in offer.arrays:
            if match := _LAYER.search(name):
                by_layer.setdefault(int(match[0]), []).append(name)
        arrays = {name: one for name, one in offer.arrays.items() if not _LAYER.search(name)}
        silent: dict[str, Origin] = {}
        for layer, origin in enumerate(order):
            copies = {_LAYER.sub(str(layer), name, count=1): name for name in by_layer[origin]}
            found = {new: offer.arrays[name] for new, name in copies.items()}
            if self.copies_add_nothing and origin in order[:layer]:
                found = {new: self._silenced(new, one) for new, one in found.items()}
                silent |= found
            arrays |= found
        if self.copies_add_nothing:
            self._check_silence(silent)
        return attrs.evolve(offer, arrays=arrays)

    def undone(self, ours: Any, theirs: Any) -> Any:
        """Returns the model with the source's layers, where its own are those in the order."""
        before, after = layers_of(theirs.decoder.stack), layers_of(ours.decoder.stack)
        order = self._order(len(before), len(after))
        first = {origin: after[order.index(origin)] for origin in order}
        if any(layer != first[origin] for layer, origin in zip(after, order, strict=True)):
            return ours  # so that the difference shows
        layers = [first.get(i, layer) for i, layer in enumerate(before)]
        return update_config(ours, {"decoder.stack": arranged(layers)})

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
        """Checks that each glob names an output of a copy, and each part of a copy has one.

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

    Routers begin as in a new model. Where the weights of a token's experts add up to one, as they
    do by default, the model computes what the source did.

    Source: Komatsuzaki et al. 2022, arXiv:2212.05055, section 3.

    Args:
        noise: Deviation of noise on each expert, by the root mean square of its matrices.
        seed: Of the noise.
    """

    noise: float = 0.0
    seed: int = 0

    def edited(self, offer: Offer, models: Models) -> Offer:
        """Returns experts and routers in the place of feed-forwards."""
        noise = Noise(self.noise, self.seed) if self.noise else None
        found, places, used = {}, set(), set()
        for name in models.shapes:
            match = _EXPERT.fullmatch(name)
            dense = f"{match['place']}.{match['rest']}" if match else ""
            if match and name not in offer.arrays and dense in offer.arrays:
                found[name] = attrs.evolve(offer.arrays[dense], noise=noise)
                places.add(match["place"])
                used.add(dense)
        if not found:
            raise self.nothing("finds no expert whose feed-forward is in the source")
        kept = {n: one for n, one in offer.arrays.items() if n not in used or n in models.shapes}
        routers = {
            name
            for name in models.shapes
            if name not in offer.arrays and name.partition(".router.")[0] in places
        }
        return Offer({**kept, **found}, offer.fresh | (routers - found.keys()))

    def undone(self, ours: Any, theirs: Any) -> Any:
        """Returns the model with feed-forwards where the source has no mixture of experts."""
        mixed = {format_path(path) for path, node in walk(theirs) if _is_mixture(node)}
        if not mixed:
            return map_config(ours, lambda node: node.expert if _is_mixture(node) else node)
        changes = {
            format_path(path): node.expert
            for path, node in walk(ours)
            if _is_mixture(node) and format_path(path) not in mixed
        }
        return update_config(ours, changes) if changes else ours


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

    def edited(self, offer: Offer, models: Models) -> Offer:
        """Returns tables with as many rows as the model has positions."""
        tables = [name for name in offer.arrays if is_at(self.at, name)]
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

        extended_offer = offer.mapped(extended)
        if extended_offer == offer:
            raise self.nothing(f"has nothing to do: {', '.join(tables)} are not longer")
        return extended_offer


def _part(name: str) -> str:
    """Returns the path of what a layer holds, of which an array is."""
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
