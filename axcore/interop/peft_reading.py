"""Reading adapters in the format of PEFT, the inverse of `axcore.interop.peft`.

Adapters of linear layers become layers of the model; what else a folder contains changes its
weights.

Source: Mangrulkar et al. 2022, github.com/huggingface/peft.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from axcore.config import find_config, update_config
from axcore.errors import CheckpointError, ConfigError
from axcore.interop.canonical import canonical
from axcore.interop.checkpoint_arrays import CheckpointArrays
from axcore.interop.family import Family, family_of
from axcore.interop.peft_settings import (
    ARRAYS,
    CONFIG,
    MERGE,
    AdapterSettings,
    Replaced,
    is_named,
    read_settings,
    replaced,
)
from axcore.interop.tensor_files import tensors_in
from axcore.interop.tensor_place import TensorPlace
from axcore.interop.weight_map import (
    Arrays,
    BoundMap,
    Chain,
    Concatenate,
    Rule,
    Same,
    Transform,
    Transpose,
    listed,
    named_specs,
    unstacked,
)
from axcore.layers import Dropout, Linear, LoRALinear

PREFIX, WEIGHT = "base_model.model.", ".weight"
FACTORS = {"lora_A": "lora_down", "lora_B": "lora_up"}
MAGNITUDE, HF_MAGNITUDE = ".lora_magnitude.change", ".lora_magnitude_vector"


@attrs.frozen(slots=False)
class _AdapterArrays(CheckpointArrays):
    """The arrays of a folder of adapters; of modules without a tensor there are none."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all arrays that have a tensor, by name."""
        of = self.bound.piece_of
        every = super().shapes
        return {n: s for n, s in every.items() if of[self.places[n]].hf[0] in self.tensors}


def read_peft(folder: Path, cfg: Any) -> tuple[Any, _AdapterArrays, Replaced]:
    """Return a model's config with the adapters of a folder, their arrays, and what they replace.

    Args:
        folder: Contains the adapters.
        cfg: The config of the model that they correct, without any.

    Raises:
        ConfigError: No family has the model, or `read_settings` refuses.
        CheckpointError: The tensors are not those of the model.
    """
    settings = read_settings(folder)
    _, family, _ = family_of(cfg)
    found = _tensors(folder, family)
    rules = family.weights(canonical(cfg))
    factors = [rule for one in rules for rule in _factor_rules(one)]
    linears = [found.path for found in find_config(cfg, Linear)]
    # Every linear layer gets adapters at first, to find the names that tensors might have.
    every = _bound(_with_adapters(cfg, settings, linears), factors)
    tensors = {name: place for name, place in found.items() if name in every.shapes}
    _check_complete(tensors, settings, folder)
    others = {n.removeprefix(PREFIX): one for n, one in found.items() if n not in every.shapes}
    # What is not an adapter's may be a layer that the folder replaces as a whole.
    beside = replaced(folder, others, settings, (cfg, family))
    added = {name.removesuffix(WEIGHT) for name in beside.added}
    _check_targets(
        settings,
        sorted({*_modules(tensors), *added}),
        sorted({*_modules(every.shapes), *added}),
        folder,
    )
    sizes = _sizes(cfg, settings, every, tensors, folder)
    # Then only those that have tensors, with their own ranks.
    adapted = _with_adapters(cfg, settings, sizes, sizes)
    return adapted, _AdapterArrays(folder, _bound(adapted, factors), tensors), beside


def _modules(names: Iterable[str]) -> list[str]:
    """Return the modules that tensors of adapters are for."""
    return sorted({name.removeprefix(PREFIX).rpartition(".lora_")[0] for name in names})


def _with_adapters(
    cfg: Any, settings: AdapterSettings, paths: Iterable[str], sizes: Mapping[str, Any] = {}
) -> Any:
    """Return the config with adapters of layers, of rank and alpha by path where they differ."""
    linears = {found.path: found.node for found in find_config(cfg, Linear)}
    changes: dict[str, Any] = {}
    for path in paths:
        rank, alpha = sizes.get(path, (settings.rank, settings.alpha))
        changes[path] = LoRALinear.Config(
            base=linears[path],
            rank=rank,
            alpha=alpha,
            dropout=Dropout.Config(rate=settings.dropout),
            use_rslora=settings.use_rslora,
            use_dora=settings.use_dora,
        )
    return update_config(cfg, changes) if changes else cfg


def _sizes(
    cfg: Any, settings: AdapterSettings, every: BoundMap, tensors: Mapping[str, Any], folder: Path
) -> dict[str, tuple[int, float]]:
    """Return rank and alpha of the layers that have tensors, by the path of their config.

    Raises:
        ConfigError: Modules that share a layer's config here have several ranks or alphas.
    """
    places = _places(cfg, settings)
    found: dict[str, dict[str, tuple[int, float]]] = {}
    for piece in every.pieces:
        if piece.hf[0] in tensors:
            (module,) = _modules(piece.hf)
            for one in piece.axcore:
                path = places[one.leaf.rpartition(".lora_")[0]]
                found.setdefault(path, {})[module] = settings.sizes(module)
    for modules in found.values():
        if len(set(modules.values())) > 1:
            shown = (f"{name}: {rank}, {alpha:g}" for name, (rank, alpha) in modules.items())
            raise ConfigError(
                "modules that are one kind of layer here have several ranks or alphas:\n"
                + listed(shown),
                where=str(folder / CONFIG),
                hint=MERGE,
            )
    return {path: next(iter(modules.values())) for path, modules in found.items()}


def _places(cfg: Any, settings: AdapterSettings) -> dict[str, str]:
    """Return the path of the config of each linear layer, by the layer's name in the state.

    One config may be that of several layers. Which ones is seen by giving each config adapters of
    a rank of its own.
    """
    paths = [found.path for found in find_config(cfg, Linear)]
    # Ranks are numbers of their own, by which a layer's array says whose config it is.
    ranks = {path: (rank, settings.alpha) for rank, path in enumerate(paths, start=1)}
    specs = _with_adapters(cfg, settings, paths, ranks).build().param_specs()
    down = f".{FACTORS['lora_A']}{WEIGHT}"
    return {
        name.removesuffix(down): paths[spec.shape[-1] - 1]
        for name, spec in named_specs(specs)
        if name.endswith(down)
    }


def _bound(cfg: Any, factors: list[Rule]) -> BoundMap:
    """Return the map of all adapters that the rules fit."""
    # Numbers of layers are left out, since rules have one for all.
    known = {_NUMBER.sub("#", name) for rule in factors for name in rule.axcore}
    specs = cfg.build().param_specs()
    other = {
        one.leaf
        for name, one in unstacked(dict(named_specs(specs))).items()
        if _NUMBER.sub("#", name) not in known
    }
    return BoundMap(tuple(factors), specs, ignored=[f"^{re.escape(leaf)}$" for leaf in other])


_NUMBER = re.compile(r"\{\w+\}|(?<=\.)\d+(?=\.)")


@attrs.frozen
class _Shared(Transform):
    """Several equal arrays for one of Hugging Face's, backwards; the first of them, forwards."""

    count: int

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return the first."""
        return arrays[:1]

    @property
    def inverse(self) -> Transform:
        """Take the array as often as it is shared."""
        return _Repeated(self.count)


@attrs.frozen
class _Repeated(Transform):
    """One array, several times."""

    count: int

    def __call__(self, arrays: Arrays) -> Arrays:
        """Return the array as often as that."""
        return arrays * self.count

    @property
    def inverse(self) -> Transform:
        """Take it once."""
        return _Shared(self.count)


def _factor_rules(rule: Rule) -> Iterator[Rule]:
    """Yield the rules of the adapters of a linear layer, none for other rules.

    Where a family fuses layers, `(inputs, outputs)` side by side as the outputs of one, there is
    one product B A for all of them: each layer has the full A, and its own rows of B.
    """
    rows, own = _of_rows(rule.transform), [name.removesuffix(WEIGHT) for name in rule.axcore]
    hf = PREFIX + rule.hf[0].removesuffix(WEIGHT)
    is_linear = len(rule.hf) == 1 and all(n.endswith(WEIGHT) for n in rule.axcore + rule.hf)
    # Experts are one stacked array here, and PEFT knows no such module.
    if rows is None or not is_linear or ".experts." in rule.hf[0]:
        return
    shared = _Shared(len(own)) if len(own) > 1 else Same()
    for (factor, name), further in zip(FACTORS.items(), (shared, rows), strict=True):
        axcore = tuple(f"{one}.{name}{WEIGHT}" for one in own)
        yield Rule(axcore, (f"{hf}.{factor}{WEIGHT}",), Chain(Transpose(), further))
    magnitudes = tuple(f"{one}{MAGNITUDE}" for one in own)
    yield Rule(magnitudes, (f"{hf}{HF_MAGNITUDE}",), rows)


def _of_rows(transform: Transform) -> Transform | None:
    """Return what a transform of weights does with their outputs, None where it does more."""
    if isinstance(transform, Transpose | Same):  # the other one is how GPT-2 has its weights
        return Same()
    if isinstance(transform, Concatenate) and transform.axis == -1:
        return Concatenate(transform.sizes)
    if isinstance(transform, Chain) and isinstance(transform.parts[0], Transpose):
        return Chain(*transform.parts[1:])
    return None


def _tensors(folder: Path, family: Family) -> dict[str, TensorPlace]:
    """Return the tensors of a folder, by the names that the family's map has."""
    if not (folder / ARRAYS).is_file():
        raise CheckpointError(
            f"the folder has no {ARRAYS}",
            where=str(folder),
            hint="save the adapters with safe_serialization=True; other files are not read",
        )
    found: dict[str, TensorPlace] = {}
    for name, place in tensors_in(folder / ARRAYS).items():
        inner = name.removeprefix(PREFIX)
        for pattern, new in family.renamed:
            inner = re.sub(pattern, new, inner)
        found[PREFIX + inner] = place
    if not found:
        raise CheckpointError(
            f"{ARRAYS} contains no tensors", where=str(folder / ARRAYS), hint="fetch the file again"
        )
    return found


def _check_complete(names: Iterable[str], settings: AdapterSettings, folder: Path) -> None:
    """Check that every module has all tensors: one factor alone would correct nothing."""
    endings = [f".{factor}{WEIGHT}" for factor in FACTORS]
    endings += [HF_MAGNITUDE] if settings.use_dora else []
    there = set(names)
    modules = {name[: name.rindex(".lora_")] for name in there}
    every = [module + ending for module in sorted(modules) for ending in endings]
    missing = [name for name in every if name not in there]
    if missing:
        raise CheckpointError(
            f"{len(missing)} factors are missing, of which there is the other one:\n"
            + listed(missing),
            where=str(folder / ARRAYS),
            hint="fetch the file again",
        )


def _check_targets(
    settings: AdapterSettings, modules: list[str], known: list[str], folder: Path
) -> None:
    """Check that the tensors are of the modules that the settings name.

    A name that no module of the model has is of another family, for which the settings serve too.
    """
    targets = settings.targets
    if targets is None or targets == "all-linear":
        return
    names = [targets] if isinstance(targets, str) else list(targets)
    is_whole = isinstance(targets, str)

    def named(module: str, target: str) -> bool:
        return bool(re.fullmatch(target, module)) if is_whole else is_named(module, target)

    wanted = [n for n in known if any(named(n, t) for t in names) and not _is_excluded(n, settings)]
    missing = set(wanted) - set(modules) if settings.is_of_all_layers else set()
    problems = [f"{name} is named and has no tensors" for name in sorted(missing)]
    if not wanted:
        problems += [f"{target} is named and has no tensors" for target in names]
    problems += [f"{n} has tensors and is not named" for n in sorted(set(modules) - set(wanted))]
    if problems:
        raise CheckpointError(
            "target_modules are not those of the tensors:\n" + listed(problems),
            where=str(folder / CONFIG),
            hint="fetch both files again",
        )
    unused = [target for target in names if not any(named(module, target) for module in known)]
    if unused:
        warnings.warn(
            f"target_modules names {', '.join(unused)}, which the model does not have", stacklevel=2
        )


def _is_excluded(module: str, settings: AdapterSettings) -> bool:
    if isinstance(settings.excluded, str):
        return bool(re.fullmatch(settings.excluded, module))
    return any(is_named(module, one) for one in settings.excluded)
