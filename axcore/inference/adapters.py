"""Adapters that an engine serves beside each other: which number each has, and its factors."""

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from axcore.config import field_names, find_config, is_config
from axcore.errors import ConfigError
from axcore.interop import ArraySource, read_adapters
from axcore.interop.array_source import Origin
from axcore.interop.weight_map import unstacked
from axcore.layers import KVCacheConfig
from axcore.layers.lora.batched import Factors
from axcore.modifiers import for_serving
from axcore.module import ParamSpec, restacked

FACTORS = {"lora_down", "lora_up"}
"""Names of an adapter's layers in a `LoRALinear`."""

NO_ADAPTER = -1
"""The number of a row that the model serves as it is."""


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
    """Returns the adapter in a folder, of PEFT's format or another that a plugin brings.

    Args:
        folder: Holds the adapter.
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
    """Returns the adapter among the arrays of a source; what it lacks of one corrects nothing.

    Args:
        cfg: The model's config with the adapter.
        source: Holds its arrays, by the names that they have in the model's state.
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


def factors_of(adapter: Adapter, room: KVCacheConfig) -> dict[tuple[str, ...], Factors]:
    """Returns the factors of each layer that an adapter corrects, by its path where it serves.

    Raises:
        ConfigError: Its layers differ in scale, or have more than factors.
    """
    corrections = [found.node for found in find_config(adapter.cfg, _is_correction)]
    if any(getattr(one, "use_dora", False) for one in corrections):
        raise ConfigError(
            "the adapter has magnitudes beside its factors (use_dora), and serving beside others "
            "adds factors alone",
            hint="serve the model with it merged: axcore convert RUN hf:FOLDER --merged",
        )
    trained, served = adapter.cfg.build(), for_serving(adapter.cfg, room).build()
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


def _named(specs: Any) -> dict[str, ParamSpec]:
    """Returns the specs of adapters, by name."""
    leaves = jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, ParamSpec))
    return {spec.name: spec for spec in leaves if set(map(str, spec.state_path)) & FACTORS}


def _without_gaps(array: Array | None, spec: ParamSpec, places: Container[Any]) -> Array:
    """Returns an array with zeros where the folder has nothing."""
    whole = jnp.zeros(spec.shape, spec.dtype) if array is None else array
    for index in np.ndindex(*spec.shape[: spec.num_stacked]):
        if index not in places:
            whole = whole.at[index].set(0)
    return whole


def _is_correction(node: Any) -> bool:
    """Returns whether a config is of a layer with a correction, by the fields that scale it."""
    return is_config(node) and {"alpha", "rank"} <= set(field_names(node))
