"""What a folder of adapters changes in the weights of its base, beside adapters of linear layers.

PEFT trains whole modules (`modules_to_save`) and biases with adapters, and adapts embeddings, heads
and experts, for which there are no adapter layers here. The first are read in the place of the
base's tensors; the second are added to them: W + scale * B A.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from axcore.errors import CheckpointError, ConfigError
from axcore.interop.copying import are_same
from axcore.interop.family import CORRECTIONS, TRAINING_ONLY, Family
from axcore.interop.origins import ArraySource
from axcore.interop.peft_settings import MERGE, AdapterSettings, is_named
from axcore.interop.quantized import Tensor
from axcore.interop.reading import PublishedArrays
from axcore.interop.tensor_files import TensorPlace
from axcore.interop.weight_map import BoundMap, listed

WEIGHT, _BASE = ".weight", ".base_layer."
LINEAR = (".lora_A.weight", ".lora_B.weight")
EMBEDDING = (".lora_embedding_A", ".lora_embedding_B")


@attrs.frozen
class Added:
    """A correction that is added to a weight when that is read.

    Args:
        down: A, `(rank, inputs)`.
        up: B, `(outputs, rank)`.
        scale: Of the correction.
        is_embedding: Whether the weight is a table, `(inputs, outputs)`.
    """

    down: TensorPlace
    up: TensorPlace
    scale: float
    is_embedding: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight that it fits."""
        shape = (self.up.shape[0], self.down.shape[-1])
        return shape[::-1] if self.is_embedding else shape


@attrs.frozen
class Corrected:
    """A tensor of a base with a correction added, in float32.

    Args:
        base: The tensor.
        added: The correction.
    """

    base: Tensor
    added: Added

    @property
    def file(self) -> Path:
        """The file of the correction."""
        return self.added.up.file

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the sum."""
        return np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the base."""
        return self.base.shape

    def read(self) -> np.ndarray:
        """Returns the sum."""
        up, down = (one.read().astype(np.float32) for one in (self.added.up, self.added.down))
        correction = self.added.scale * (up @ down)
        if self.added.is_embedding:
            correction = correction.T
        whole: np.ndarray = self.base.read().astype(np.float32) + correction
        return whole


@attrs.frozen
class Replaced:
    """What is read in the place of tensors of a base.

    Args:
        folder: Of the adapters.
        whole: Tensors that replace others, by the base's names.
        added: Corrections of tensors, by the base's names.
        leaves: The names in the model's state of what `whole` is of.
    """

    folder: Path
    whole: Mapping[str, TensorPlace] = {}
    added: Mapping[str, Added] = {}
    leaves: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is replaced."""
        return bool(self.whole or self.added)

    @property
    def names(self) -> list[str]:
        """The names of the base's tensors that it changes."""
        return sorted({*self.whole, *self.added})

    def __call__(self, source: ArraySource) -> ArraySource:
        """Returns the arrays of a base with what it changes in them.

        Raises:
            ConfigError: The base is a run, whose arrays have other names.
        """
        if not isinstance(source, PublishedArrays):
            raise ConfigError(
                f"the adapters change weights of their base: {', '.join(self.names)}; these are "
                "read onto a published model, not onto a run",
                where=str(self.folder),
                hint="write the run as a published model first: axcore convert RUN hf:FOLDER",
            )
        tensors: dict[str, Tensor] = {**source.tensors, **self.whole}
        for name, added in self.added.items():
            tensors[name] = Corrected(tensors[name], added)
        return attrs.evolve(source, tensors=tensors)


def replaced(
    folder: Path,
    tensors: Mapping[str, TensorPlace],
    settings: AdapterSettings,
    base: tuple[Any, Family],
) -> Replaced:
    """Returns what the tensors of adapters that are of no linear layer change in their base.

    Args:
        folder: Of the adapters.
        tensors: These tensors, by the base's names but for what adapters add to them.
        settings: What `adapter_config.json` says.
        base: The base's config, and its family.

    Raises:
        CheckpointError: The base has no such tensors, or a module that is named has none.
        ConfigError: The base ties two tensors, of which they change one.
    """
    if not tensors and not settings.saved:
        return Replaced(folder)
    cfg, family = base
    bound = family.bind(cfg, ignored=(*TRAINING_ONLY, *CORRECTIONS))
    added, used = _added(tensors, settings)
    rest = {name: one for name, one in tensors.items() if name not in used}
    whole = {name.replace(_BASE, "."): one for name, one in rest.items()}
    _check_saved(folder, whole, settings, bound)
    _untie(folder, whole, added, family, bound)
    _check_tensors(folder, whole, added, bound)
    if added:
        warnings.warn(
            f"no adapter layer here corrects {', '.join(sorted(added))}: these adapters are added "
            "to the weights, and are not trained as adapters any more",
            stacklevel=2,
        )
    trained = whole.keys() - added.keys()  # a base that is stored with its adapters is frozen
    pieces = [piece for piece in bound.pieces if not trained.isdisjoint(piece.theirs)]
    leaves = dict.fromkeys(one.leaf for piece in pieces for one in piece.ours)
    return Replaced(folder, whole, added, tuple(leaves))


def _added(
    tensors: Mapping[str, TensorPlace], settings: AdapterSettings
) -> tuple[dict[str, Added], set[str]]:
    """Returns the corrections of pairs of factors by their weight, and the names of the factors."""
    found: dict[str, Added] = {}
    used: set[str] = set()
    for down, up in (LINEAR, EMBEDDING):
        for name in tensors:
            module = name.removesuffix(down)
            if module != name and module + up in tensors:
                pair = (tensors[name], tensors[module + up])
                scale = settings.scale(module)
                found[module + WEIGHT] = Added(*pair, scale, is_embedding=down == EMBEDDING[0])
                used |= {name, module + up}
    return found, used


def _untie(
    folder: Path,
    whole: dict[str, TensorPlace],
    added: Mapping[str, Added],
    family: Family,
    bound: BoundMap,
) -> None:
    """Takes out the second of two tied tensors that are changed alike.

    Raises:
        ConfigError: They are not: a model with the adapters does not tie them.
    """
    for again, original in family.copies.items():
        changed = {again, original} & (whole.keys() | added.keys())
        if again in bound.shapes or not changed:
            continue
        one, other = whole.get(again), whole.get(original)
        is_same = one is not None and other is not None and are_same(one.read(), other.read())
        if added.keys() & changed or not is_same:
            raise ConfigError(
                f"the adapters change {', '.join(sorted(changed))}, and their model has one tensor "
                f"for {again} and {original}",
                where=str(folder),
                hint="save the model with a head of its own (tie_word_embeddings false), and name "
                "it: --base FOLDER",
            )
        del whole[again]


def _check_tensors(
    folder: Path,
    whole: Mapping[str, TensorPlace],
    added: Mapping[str, Added],
    bound: BoundMap,
) -> None:
    """Checks that tensors are of the model, and have its shapes."""
    shapes = [(name, one.shape) for name, one in whole.items()]
    shapes += [(name, one.shape) for name, one in added.items()]
    problems = [
        f"{name} has shape {list(shape)}; the model's has {list(bound.shapes[name])}"
        if name in bound.shapes
        else f"{name} is not of the model"
        for name, shape in sorted(shapes)
        if bound.shapes.get(name) != shape
    ]
    if problems:
        raise CheckpointError(
            f"{len(problems)} tensors of the adapters do not fit the model, which may be another "
            "one:\n" + listed(problems),
            where=str(folder),
            hint=f"name the model that the adapters were trained on; or {MERGE}",
        )


def _check_saved(
    folder: Path, whole: Mapping[str, TensorPlace], settings: AdapterSettings, bound: BoundMap
) -> None:
    """Checks that modules that are named as saved have tensors."""
    there = {name.rpartition(".")[0] for name in whole}
    known = there | {name.rpartition(".")[0] for name in bound.shapes}
    missing = [
        module
        for module in sorted(known - there)
        if any(is_named(module, name) for name in settings.saved)
    ]
    missing += [n for n in settings.saved if not any(is_named(module, n) for module in known)]
    if missing:
        raise CheckpointError(
            "modules_to_save names modules without tensors:\n" + listed(missing),
            where=str(folder),
            hint="fetch both files again",
        )
