"""Adapters in the format of PEFT: what LoRA trained, for transformers and what serves it.

adapter_model.safetensors   `lora_A` (rank, inputs) and `lora_B` (outputs, rank) by module
adapter_config.json         rank, alpha, and which modules

Magnitudes are full lengths of columns there, and here how far they are from the base's. So reading
and writing them takes the weights that the adapters correct.

Source: Mangrulkar et al. 2022, github.com/huggingface/peft.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from axcore.config import find_config
from axcore.errors import ConfigError
from axcore.interop.adapters import AdapterCheckpoint, AdapterFormat
from axcore.interop.array_source import ArraySource, LeafOrigins, Origin
from axcore.interop.canonical import base_config
from axcore.interop.checkpoint_arrays import named_leaves, on_host, stored
from axcore.interop.family import ADAPTER_ARRAYS, TRAINING_ONLY, family_of
from axcore.interop.peft_reading import FACTORS, HF_MAGNITUDE, MAGNITUDE, PREFIX, WEIGHT, read_peft
from axcore.interop.peft_settings import ARRAYS, CONFIG, read_settings
from axcore.interop.tensor_files import TensorSpec, new_folder, write_tensors
from axcore.interop.weight_map import BoundMap, Shape, Slice, Transpose, listed
from axcore.layers import (
    LoRALinear,
    full_precision_state,
    merge_adapters,
    with_full_precision_weights,
    without_lora,
)
from axcore.layers.adapters.lora import ADAPTERS, MAGNITUDES, column_lengths
from axcore.module import DType

_BASE = ".base.weight"


class PeftFormat(AdapterFormat):
    """Adapters as PEFT reads them, and models into which they are merged."""

    def write(
        self,
        folder: Path | str,
        cfg: Any,
        state: Any,
        *,
        trained: tuple[str, ...],
        dtype: DType | None,
        base: str | None,
        files: Mapping[str, bytes],
    ) -> str:
        """Write the adapters."""
        if trained != _trained(cfg):
            raise ConfigError(
                f"the run trained {', '.join(trained)}, which are not its adapters alone",
                where="learner.trainable",
                hint="export the full model: --merged",
            )
        family = to_peft(folder, cfg, state, dtype=dtype, base=base, files=files)
        return f"PEFT adapters of a model of type {family}"

    def is_in(self, folder: Path) -> bool:
        """Whether a folder contains adapters."""
        return (folder / CONFIG).is_file()

    def base(self, folder: Path) -> str | None:
        """Return the model that `adapter_config.json` names."""
        return read_settings(folder).base

    def read(self, folder: Path, cfg: Any) -> AdapterCheckpoint:
        """Return adapters."""
        adapted, arrays, replaced = read_peft(folder, cfg)
        places = (*arrays.tensors.values(), *replaced.whole.values())
        dtypes = frozenset(str(place.dtype) for place in places)
        relative_to = partial(_MagnitudeArrays, arrays) if _has_dora(adapted) else None
        trained = (*(_trained(adapted) if has_adapters(adapted) else ()), *replaced.leaves)
        # DoRA's files contain full lengths of columns; ours
        # hold the change from the base's, so they need it.
        return AdapterCheckpoint(adapted, arrays, trained, dtypes, relative_to, replaced or None)

    def merged(self, cfg: Any, state: Any) -> tuple[Any, Any]:
        """Return the model without adapters."""
        cfg, state = with_full_precision_weights(cfg), full_precision_state(cfg, state)
        return without_lora(cfg), merge_adapters(cfg.build(), state)


def _has_dora(cfg: Any) -> bool:
    return any(found.node.use_dora for found in find_config(cfg, LoRALinear))


def _trained(cfg: Any) -> tuple[str, ...]:
    """Return the globs of all that the adapters of a model train."""
    return (*ADAPTERS, *MAGNITUDES) if _has_dora(cfg) else ADAPTERS


def has_adapters(cfg: Any) -> bool:
    """Whether a model's config has layers that LoRA corrects."""
    return bool(find_config(cfg, LoRALinear))


def to_peft(
    folder: Path | str,
    cfg: Any,
    state: Any,
    *,
    dtype: DType | None = None,
    base: str | None = None,
    files: Mapping[str, bytes] | None = None,
) -> str:
    """Write the adapters of a model into a new folder, and return its family's name.

    Args:
        folder: Where to write; it may not exist, or must be empty.
        cfg: The model's config, with LoRA applied.
        state: Its state.
        dtype: Of all tensors; each array's own by default.
        base: The pretrained checkpoint that they correct.
        files: More files, by name.

    Raises:
        ConfigError: No family has such a model, or PEFT has no such adapters.
        CheckpointError: The folder is not empty, or a number is not finite.
    """
    if not has_adapters(cfg):
        raise ConfigError("the model has no adapters", hint="apply LoRA to it first")
    # Lengths are of the weights as they compute, so quantized ones are converted first.
    if _has_dora(cfg):  # the only ones that weights have a part in
        state = full_precision_state(cfg, state)
    cfg = with_full_precision_weights(cfg)
    name, family, _ = family_of(base_config(cfg))
    bound = family.bind(cfg, ignored=(*TRAINING_ONLY, *ADAPTER_ARRAYS))
    modules = _adapted(bound)
    tensors = dict(_tensors(modules, named_leaves(state), dtype))
    content = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": _targets(modules, bound),
        **_sizes(cfg),
    }
    with new_folder(folder) as draft:
        specs = [TensorSpec(key, array.shape, array.dtype) for key, array in tensors.items()]
        write_tensors(draft / ARRAYS, specs, iter(tensors.values()))
        text = json.dumps(content, indent=2) + "\n"
        for file, data in {CONFIG: text.encode(), **(files or {})}.items():
            (draft / file).parent.mkdir(exist_ok=True)
            (draft / file).write_bytes(data)
    return name


def _sizes(cfg: Any) -> dict[str, Any]:
    """Return what all adapters have in common: their rank, alpha, dropout and kind."""
    layers = [found.node for found in find_config(cfg, LoRALinear)]
    found = {
        (one.rank, one.alpha, one.dropout.rate, one.use_rslora, one.use_dora) for one in layers
    }
    if len(found) > 1:
        raise ConfigError(
            f"the adapters have several ranks, alphas, dropouts or kinds: {sorted(found)}",
            hint="export the model with them merged: --merged",
        )
    names = ("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora")
    return dict(zip(names, found.pop(), strict=True))


def _adapted(bound: BoundMap) -> dict[str, Slice]:
    """Return the weights that have adapters, by the name of Hugging Face's module.

    Raises:
        ConfigError: One of them is not the weight of a linear layer there.
    """
    found = {
        piece.hf[0].removesuffix(WEIGHT): piece
        for piece in bound.pieces
        if any(one.leaf.endswith(_BASE) for one in piece.axcore)
    }
    strange = [
        name
        for name, piece in found.items()
        if not isinstance(piece.transform, Transpose) or ".experts." in name
    ]
    if strange:
        raise ConfigError(
            f"{len(strange)} adapters are for what is not its own linear layer in transformers:\n"
            + listed(strange),
            hint="export the model with them merged: --merged; or adapt other layers",
        )
    return {name: piece.axcore[0] for name, piece in found.items()}


def _tensors(
    modules: Mapping[str, Slice], leaves: Mapping[str, Any], dtype: DType | None
) -> Iterator[tuple[str, np.ndarray]]:
    for module, weight in modules.items():
        for factor, axcore in FACTORS.items():
            leaf = leaves[f"{weight.leaf.removesuffix(_BASE)}.{axcore}{WEIGHT}"]
            name = f"{PREFIX}{module}.{factor}.weight"
            # Ours are `[inputs, outputs]`, PyTorch's the other way round.
            array = on_host(leaf, weight.index).T
            yield name, stored(name, array, np.dtype(dtype or array.dtype))
        change = leaves.get(f"{weight.leaf.removesuffix(_BASE)}{MAGNITUDE}")
        if change is not None:
            name = f"{module}{HF_MAGNITUDE}"
            base = on_host(leaves[weight.leaf], weight.index)
            whole = _magnitude_vector(on_host(change, weight.index), base)
            yield f"{PREFIX}{name}", stored(name, whole, np.dtype(dtype or change.dtype))


def _targets(modules: Mapping[str, Slice], bound: BoundMap) -> list[str]:
    """Return what names the modules: their last steps, if those name no other module."""
    last = {name.rpartition(".")[2] for name in modules}
    named = {name.removesuffix(WEIGHT) for name, shape in bound.shapes.items() if len(shape) == 2}
    # PEFT matches names by their ends; a name that others share is written out in full.
    others = {name.rpartition(".")[2] for name in named - modules.keys()}
    return sorted(modules if last & others else last)


def _magnitude_vector(change: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the full lengths of a weight's columns, `[N]`, from their change."""
    lengths = np.asarray(column_lengths(jnp.asarray(weight)))
    whole: np.ndarray = lengths + np.asarray(change, np.float32)
    return whole


@attrs.frozen
class _MagnitudeArrays(ArraySource):
    """Arrays of adapters whose magnitudes are lengths, as those of a model whose are changes.

    Args:
        adapters: Have the lengths.
        base: The arrays of the model that they correct.
    """

    adapters: ArraySource
    base: ArraySource

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shapes of all arrays, by name."""
        return self.adapters.shapes

    def described(self, names: Iterable[str]) -> str:
        """Return where arrays are, for a table."""
        return self.adapters.described(names)

    def check(self, names: Iterable[str]) -> None:
        """Check arrays, and the weights that magnitudes are of."""
        names = tuple(names)
        self.adapters.check(names)
        self.base.check(_weight_of(name) for name in names if name.endswith(MAGNITUDE))

    def read(
        self, leaves: Mapping[str, LeafOrigins], wanted: Mapping[str, Any]
    ) -> Iterator[tuple[str, jax.Array]]:
        """Yield leaves; of magnitudes, one weight after another is read, and left again."""
        for name, array in self.adapters.read(leaves, wanted):
            if not name.endswith(MAGNITUDE):
                yield name, array
                continue
            change = array.astype(jnp.float32)
            for index, origin in leaves[name].items():
                lengths = self._lengths(origin)
                # By index, as magnitudes of stacked layers are one array.
                change = change.at[index].add(-lengths) if index else change - lengths
            yield name, jax.device_put(change.astype(array.dtype), array.sharding)

    def _lengths(self, origin: Origin) -> Float[np.ndarray, " N"]:
        weight = _weight_of(origin.source)
        shape = self.base.shapes[weight]
        wanted = jax.ShapeDtypeStruct(shape, jnp.float32)  # type: ignore[no-untyped-call]
        alone: LeafOrigins = {(): Origin(weight, shape)}
        ((_, array),) = self.base.read({weight: alone}, {weight: wanted})
        return np.asarray(column_lengths(array))


def _weight_of(magnitude: str) -> str:
    return f"{magnitude.removesuffix(MAGNITUDE)}.weight"
