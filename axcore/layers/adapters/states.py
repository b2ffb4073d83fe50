"""States of models with adapters: made from a state without, and merged back into one."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from axcore.config import replace_config, suggest_names
from axcore.config.paths import matches, parse_pattern
from axcore.errors import ModuleError
from axcore.layers.adapters.lora import ADAPTERS, MAGNITUDES, LoRALinear, column_factors
from axcore.module import Module, ParamSpec, StackedModule

State = dict[str, Any]
Adapters = Mapping[str, Array]
"""Arrays of adapters by their path in the state, `decoder.layer.attention.q.lora_up.weight`."""


def without_lora(cfg: Any) -> Any:
    """Return a config with the base of every `LoRALinear` in its place.

    Raises:
        ConfigError: There is none.
    """
    return replace_config(cfg, LoRALinear, lambda lora: lora.base)


def adapters_of(module: Module, state: State) -> dict[str, Array]:
    """Return the arrays of a state that belong to adapters."""
    found = {}
    for spec in _adapter_specs(module):
        leaf: Any = state
        for step in spec.state_path:
            leaf = leaf[str(step)]
        found[spec.name] = leaf
    return found


def new_adapters(module: Module, rng: Array | int) -> dict[str, Array]:
    """Return adapters that correct nothing yet, without making an array of the base."""
    # Under jit what is not returned is not computed: the base may not fit the host a second time.
    fresh: dict[str, Array] = jax.jit(lambda rng: adapters_of(module, module.init(rng)))(rng)
    return fresh


def with_adapters(module: Module, state: State, adapters: Adapters) -> State:
    """Return a state of a module with adapters, from that of the module without them.

    Args:
        module: The module with adapters.
        state: A state of the module without; its arrays are shared.
        adapters: What `new_adapters` or `adapters_of` returned.

    Raises:
        ModuleError: They are not this module's.
    """
    _check_fit(module, adapters)
    for path, _ in _lora_layers(module):
        state = _with_part(state, path, {"base": _part(state, path)})
    for spec in _adapter_specs(module):
        state = _with_part(state, tuple(map(str, spec.state_path)), adapters[spec.name])
    return state


def merge_adapters(module: Module, state: State) -> State:
    """Return a state of the module without adapters, with every correction added to its weight.

    Args:
        module: The module with adapters, whose config `without_lora` takes them from.
        state: Its state.
    """
    for path, layer in _lora_layers(module):
        part = _part(state, path)
        weight, down, up = (part[name]["weight"] for name in ("base", "lora_down", "lora_up"))
        # In float32, rounded once: a correction may be smaller than a 16-bit weight's last digit.
        change = layer.scale * jnp.matmul(down.astype(jnp.float32), up.astype(jnp.float32))
        corrected = weight.astype(jnp.float32) + change
        if layer.config.use_dora:
            lengthened = jnp.asarray(part["lora_magnitude"]["change"])
            factors = column_factors(jnp.asarray(weight), change, lengthened)
            corrected = corrected * factors[..., None, :]
        state = _with_part(state, path, {**part["base"], "weight": corrected.astype(weight.dtype)})
    return state


def _lora_layers(module: Module) -> list[tuple[tuple[str, ...], LoRALinear]]:
    return [(path, one) for path, one in _walk(module, (), set()) if isinstance(one, LoRALinear)]


def _walk(
    module: Module, path: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[tuple[str, ...], Module]]:
    """Yield all modules with their paths in the state; a shared one where it comes first."""
    if id(module) in seen:
        return
    seen.add(id(module))
    yield path, module
    for steps, child in module.children():
        inner = child.module if isinstance(child, StackedModule) else child
        yield from _walk(inner, (*path, *map(str, steps)), seen)


def _adapter_specs(module: Module) -> list[ParamSpec]:
    globs = [parse_pattern(glob) for glob in (*ADAPTERS, *MAGNITUDES)]
    is_spec = lambda leaf: isinstance(leaf, ParamSpec)  # noqa: E731
    specs = jax.tree.leaves(module.param_specs(), is_leaf=is_spec)
    return [spec for spec in specs if any(matches(glob, spec.state_path) for glob in globs)]


def _check_fit(module: Module, adapters: Adapters) -> None:
    specs = {spec.name: spec for spec in _adapter_specs(module)}
    strange = sorted(adapters.keys() ^ specs.keys())
    if strange:
        name = strange[0]
        raise ModuleError(
            f"the adapters {'lack' if name in specs else 'hold'} {name!r}, which the model "
            f"{'has' if name in specs else 'lacks'}",
            hint=suggest_names(name, specs) if specs else "apply LoRA to the model's config first",
        )
    for name, array in adapters.items():
        if array.shape != specs[name].shape:
            raise ModuleError(
                f"adapter {name!r} has shape {array.shape}; the model's has {specs[name].shape}",
                hint="use the rank that the adapters were trained with",
            )


def _part(state: State, path: tuple[str, ...]) -> Any:
    for step in path:
        state = state[step]
    return state


def _with_part(state: State, path: tuple[str, ...], part: Any) -> Any:
    """Return a state with another part at a path; the given state is left as it is."""
    if not path:
        return part
    return {**state, path[0]: _with_part(state.get(path[0], {}), path[1:], part)}
