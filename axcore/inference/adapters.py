"""Adapters that an engine serves together: which number each has, and its factors."""

import hashlib
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from axcore.config import field_names, find_config, is_config, suggest_names
from axcore.errors import ConfigError, RequestError
from axcore.interop import ArraySource, read_adapters
from axcore.interop.array_source import Origin
from axcore.interop.weight_map import unstacked
from axcore.layers import KVCacheConfig
from axcore.layers.adapters.batched import Factors
from axcore.modifiers import for_serving
from axcore.module import ParamSpec, restacked

FACTORS = {"lora_down", "lora_up"}
"""Names of an adapter's layers in a `LoRALinear`."""


NO_ADAPTER = -1
"""The number of a row that the model serves as it is."""


AdapterFactors = Mapping[tuple[str, ...], Factors]
"""Factors of an adapter's layers, by their paths."""


@attrs.frozen
class Adapter:
    """A correction of a model.

    Args:
        cfg: The model's config with it, as `LoRA` and PEFT's folders give it.
        arrays: Its arrays by name, as `axcore.layers.adapters_of` returns them.
    """

    cfg: Any
    arrays: Mapping[str, Array]

    @property
    def rank(self) -> int:
        """The largest width of its corrections."""
        ranks: list[int] = [one.node.rank for one in find_config(self.cfg, _is_correction)]
        return max(ranks)


def read_adapter(folder: str | Path, cfg: Any) -> Adapter:
    """Return the adapter in a folder, of PEFT's format or another that a plugin brings.

    Args:
        folder: Contains the adapter.
        cfg: Of the model that it corrects.

    Raises:
        CheckpointError: The folder is damaged, or of another model.
        ConfigError: It does what adapters here do not.
    """
    found = read_adapters(folder, cfg)
    found.check_is_alone(
        str(folder),
        "an engine adds adapters of linear layers alone; serve these by themselves: axcore convert "
        "hf:FOLDER RUN, and axcore serve RUN",
    )
    return adapter_from(found.config, found.arrays)


def adapter_from(cfg: Any, source: ArraySource) -> Adapter:
    """Return the adapter among the arrays of a source; what it lacks of one corrects nothing.

    Args:
        cfg: The model's config with the adapter.
        source: Contains its arrays, by the names that they have in the model's state.
    """
    specs = _named(cfg.build().param_specs())
    origins: dict[str, dict[tuple[int, ...], Origin]] = {name: {} for name in specs}
    shapes = source.shapes
    for name, place in unstacked(specs).items():
        if name in shapes:
            origins[place.leaf][place.index] = Origin(name, shapes[name])
    wanted = {n: jax.ShapeDtypeStruct(spec.shape, spec.dtype) for n, spec in specs.items()}  # type: ignore[no-untyped-call]
    read = dict(source.read({n: one for n, one in origins.items() if one}, wanted))
    arrays = {
        name: _without_gaps(read.get(name), spec, origins[name]) for name, spec in specs.items()
    }
    return Adapter(cfg, arrays)


def factors_of(adapter: Adapter, cache_config: KVCacheConfig) -> dict[tuple[str, ...], Factors]:
    """Return the factors of each layer that an adapter corrects, by its path where it serves.

    Raises:
        ConfigError: Its layers differ in scale, or have more than factors.
    """
    corrections = [found.node for found in find_config(adapter.cfg, _is_correction)]
    if any(getattr(one, "use_dora", False) for one in corrections):
        raise ConfigError(
            "the adapter has magnitudes and factors (use_dora), and a batch with several adapters "
            "adds factors alone",
            hint="serve the model with it merged: axcore convert RUN hf:FOLDER --merged",
        )
    trained, served = adapter.cfg.build(), for_serving(adapter.cfg, cache_config).build()
    scales = {one.scale for one in corrections}
    if len(scales) != 1:
        raise ConfigError(
            f"the adapter has {len(scales)} scales, {sorted(scales)}; expected one",
            hint="give a config that LoRA was applied to",
        )
    known = _named(trained.param_specs())
    wanted = _named(served.param_specs())
    tree = {name: adapter.arrays[name] for name in known}
    flat = restacked(tree, known, wanted)
    found = {}
    for name, spec in wanted.items():
        *path, factor, _ = map(str, spec.state_path)
        if factor == "lora_down":
            up = flat[name.replace("lora_down", "lora_up")]
            factors = jax.device_get((flat[name], up * next(iter(scales))))
            down, up = map(jnp.asarray, factors)  # of no device, as weights may be on others
            found[tuple(path)] = (down, up)
    return found


@attrs.frozen(eq=False)
class EngineAdapter:
    """An adapter as engines take it.

    Args:
        factors: Of its layers.
        digest: Of the factors: adapters with the same one correct alike.
    """

    factors: AdapterFactors
    digest: str

    @classmethod
    def of(cls, adapter: Adapter, cache_config: KVCacheConfig) -> "EngineAdapter":
        """Return an adapter for engines of certain sizes.

        Raises:
            ConfigError: Its layers differ in scale, or have more than factors.
        """
        factors = factors_of(adapter, cache_config)
        digest = hashlib.blake2b(digest_size=16)
        for path, pair in sorted(factors.items()):
            for name, array in zip(("down", "up"), map(np.asarray, pair), strict=True):
                digest.update(f"{path} {name} {array.dtype} {array.shape}\n".encode())
                digest.update(array.tobytes())
        return cls(factors, digest.hexdigest())


class NumberedAdapter(NamedTuple):
    """Where an engine has an adapter: its number, and the digest of its factors."""

    number: int
    digest: str


def _named(specs: Any) -> dict[str, ParamSpec]:
    """Return the specs of adapters, by name."""
    leaves = jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    return {spec.name: spec for spec in leaves if set(map(str, spec.state_path)) & FACTORS}


def _without_gaps(array: Array | None, spec: ParamSpec, places: Container[Any]) -> Array:
    """Return an array with zeros where the folder has nothing."""
    whole = jnp.zeros(spec.shape, spec.dtype) if array is None else array
    for index in np.ndindex(*spec.shape[: spec.num_stacked]):
        if index not in places:
            whole = whole.at[index].set(0)
    return whole


def _is_correction(node: Any) -> bool:
    """Return whether a config is of a layer with a correction, by the fields that scale it."""
    return is_config(node) and {"alpha", "rank"} <= set(field_names(node))


WITHOUT_ADAPTER = NumberedAdapter(NO_ADAPTER, "")
"""What requests are answered by that name none."""


class EngineAdapters:
    """Numbers of adapters by name; not for several threads.

    Args:
        max_adapters: Adapters that can be loaded at once.
    """

    def __init__(self, max_adapters: int) -> None:
        self._max_adapters = max_adapters
        self._known: dict[str, NumberedAdapter] = {}

    def find(self, name: str | None) -> NumberedAdapter:
        """Return the adapter of a name; None names none.

        Raises:
            RequestError: There is none of that name.
        """
        if name is None:
            return WITHOUT_ADAPTER
        found = self._known.get(name)
        if found is None:
            known = suggest_names(name, self._known) if self._known else None
            raise RequestError(f"there is no adapter {name!r}", where="adapter", hint=known)
        return found

    def has(self, name: str, digest: str) -> bool:
        """Return whether an adapter has this name and these factors."""
        found = self._known.get(name)
        return found is not None and found.digest == digest

    def free_number(self, name: str, used: Collection[int]) -> int:
        """Return a number for an adapter, whose name another one may have until then.

        Args:
            name: Its name.
            used: Numbers of adapters that requests use.

        Raises:
            ConfigError: There is no room for one more.
        """
        taken = {one.number for known, one in self._known.items() if known != name}
        free = [number for number in range(self._max_adapters) if number not in taken.union(used)]
        if not free:
            raise ConfigError(
                f"there is room for {self._max_adapters} adapters, and all are in use",
                where="num_adapters",
                hint="remove one, or set num_adapters higher",
            )
        return free[0]

    def set(self, name: str, adapter: NumberedAdapter) -> None:
        """Give an adapter a name; one that had it has none any more."""
        self._known[name] = adapter

    def remove(self, name: str) -> None:
        """Take a name away.

        Raises:
            ConfigError: No adapter has it.
        """
        if name not in self._known:
            hint = suggest_names(name, self._known) if self._known else None
            raise ConfigError(f"there is no adapter {name!r}", hint=hint)
        del self._known[name]
