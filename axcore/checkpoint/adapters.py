"""Adapters in files of their own: what LoRA trained, without the model that it was trained on.

adapters.safetensors   their arrays, by path in the model's state
adapters.json          the config of every adapter, by path in the model's config
"""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from axcore.config import REQUIRED, evolve, find_config, from_dict, to_dict, update_config
from axcore.config.json_files import parse_json
from axcore.errors import CheckpointError, ConfigError
from axcore.layers import Linear, LoRALinear, adapters_of, with_adapters
from axcore.whole_files import read_regular, write_whole

ARRAYS_NAME, CONFIG_NAME = "adapters.safetensors", "adapters.json"
FORMAT = 1


def save_adapters(folder: Path | str, cfg: Any, state: Any) -> None:
    """Write the adapters of a model into a folder, which is made where it is absent.

    Args:
        folder: Where to write; adapters in it are replaced.
        cfg: The model's config, with LoRA applied.
        state: The model's state.

    Raises:
        ConfigError: The config has no adapters.
    """
    layers = find_config(cfg, LoRALinear)
    if not layers:
        raise ConfigError(
            f"{type(cfg).__qualname__} has no adapters to save", hint="apply LoRA to it first"
        )
    arrays = {name: np.asarray(leaf) for name, leaf in adapters_of(cfg.build(), state).items()}
    templates = {found.path: to_dict(evolve(found.node, base=REQUIRED)) for found in layers}
    text = json.dumps({"format": FORMAT, "layers": templates}, indent=2)
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_whole(Path(folder, ARRAYS_NAME), save(arrays))
    write_whole(Path(folder, CONFIG_NAME), f"{text}\n".encode())


def load_adapters(folder: Path | str, cfg: Any, state: Any) -> tuple[Any, Any]:
    """Return a model's config and state with the adapters of a folder.

    Args:
        folder: What `save_adapters` wrote.
        cfg: The config of the model that they were trained on, without LoRA.
        state: That model's state; its arrays are shared.

    Raises:
        CheckpointError: A file is missing or damaged, or an adapter has no place in the model.
        ModuleError: The arrays are not those of the adapters.
    """
    layers, arrays = (
        _read_config(Path(folder, CONFIG_NAME)),
        _read_arrays(Path(folder, ARRAYS_NAME)),
    )
    linears = {found.path: found.node for found in find_config(cfg, Linear)}
    lost = sorted(layers.keys() - linears.keys())
    if lost:
        raise CheckpointError(
            f"the adapters are for {', '.join(lost)}; the model has no linear layer there",
            where=str(folder),
            hint="load them into the model that they were trained on: "
            + (", ".join(linears) or "this one has no linear layers"),
        )
    adapted = update_config(
        cfg, {path: evolve(layer, base=linears[path]) for path, layer in layers.items()}
    )
    adapters = {name: jnp.asarray(array) for name, array in arrays.items()}
    return adapted, with_adapters(adapted.build(), state, adapters)


def _read_config(path: Path) -> dict[str, LoRALinear.Config]:
    try:
        content = parse_json(_read(path))
        if content["format"] != FORMAT:
            raise CheckpointError(
                f"adapters of format {content['format']}; this version reads format {FORMAT}",
                where=str(path),
            )
        return {place: from_dict(layer) for place, layer in content["layers"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"the file does not describe adapters: {error!r}",
            where=str(path),
            hint="save the adapters again",
        ) from error


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        return dict(load(_read(path)))
    except SafetensorError as error:
        raise CheckpointError(
            f"the arrays cannot be read: {error}", where=str(path), hint="save the adapters again"
        ) from error


def _read(path: Path) -> bytes:
    try:
        return read_regular(path)
    except FileNotFoundError:
        raise CheckpointError(
            f"there is no {path.name} in {path.parent}",
            where=str(path.parent),
            hint="name the folder that save_adapters wrote",
        ) from None
