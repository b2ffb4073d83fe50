"""`GGUFRope`: rotary positions in a GGUF file, with the scalings that llama.cpp has."""

import math
from typing import Any

import attrs
import numpy as np

from axcore.interop.config_map import Fields, Json
from axcore.interop.decoder_maps import rope_position
from axcore.interop.gguf_map import (
    GGUFEntry,
    Metadata,
    MetadataKeys,
    head_width,
    unreadable_key,
    unsaid,
)
from axcore.layers import rope_frequencies

# llama.cpp's own, which no metadata can change.
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
"""What llama.cpp computes with whatever a file says."""


@attrs.frozen
class GGUFRope(GGUFEntry):
    """The base of rotary positions, and `rope_scaling`.

    Args:
        scalings: Those of this architecture's positions in llama.cpp.
    """

    scalings: tuple[str, ...] = ("linear", "yarn")

    def metadata(self, fields: Fields) -> Metadata:
        """Return the base, and how positions are scaled."""
        base = {"rope.freq_base": float(fields.take("rope_theta"))}
        scaling = fields.take("rope_scaling", None)
        if scaling is None:
            return base
        kind = scaling["rope_type"]
        if kind not in self.scalings:
            raise unsaid("rope_scaling", scaling, f"{', '.join(self.scalings)}")
        return base | {"linear": _linear, "yarn": _yarn, "llama3": _factors}[kind](scaling)

    def tensors(self, values: Json) -> dict[str, np.ndarray]:
        """Return by what the frequency of each pair is divided, where it is in no metadata."""
        scaling = values.get("rope_scaling") or {}
        if scaling.get("rope_type") != "llama3":
            return {}
        width, theta = head_width(values), values["rope_theta"]
        scaled = rope_position({"rope_theta": theta, **scaling}).build(head_dim=width)
        # llama.cpp divides by these, so they are ratios of plain to scaled frequencies.
        factors = rope_frequencies(width, theta) / scaled.frequencies
        return {_FACTORS: factors.astype(np.float32)}

    def fields(self, keys: MetadataKeys, found: Json) -> dict[str, Any]:
        """Return the base, and how positions are scaled."""
        base = {"rope_theta": float(keys.number("rope.freq_base", 10_000.0))}
        kind = keys.take("rope.scaling.type", "none")
        factor = keys.number("rope.scaling.factor") or keys.number("rope.scale_linear")
        if _FACTORS in keys.tensors.shapes:
            return base | {"rope_scaling": self._llama3(keys, found, base["rope_theta"])}
        if kind == "none" or factor in (None, 1.0):
            return base
        if kind not in self.scalings or kind not in _READ:
            raise unreadable_key(
                "rope.scaling.type", kind, f"{', '.join(self.scalings)} in such models"
            )
        return base | {"rope_scaling": _READ[kind](keys, factor)}

    def _llama3(self, keys: MetadataKeys, found: Json, theta: float) -> dict[str, Any]:
        """Return the scaling that makes the factors of a file.

        Raises:
            ConfigError: None of those that are published does.
        """
        factors = keys.tensors.read(_FACTORS)
        scaling = {**_LLAMA3, "factor": float(factors.max())}
        made = self.tensors({**found, "rope_theta": theta, "rope_scaling": scaling})
        # The file's were computed in another order.
        if "llama3" not in self.scalings or not (
            factors.shape == made[_FACTORS].shape
            and np.allclose(factors, made[_FACTORS], rtol=1e-5, atol=0)
        ):
            raise unreadable_key(
                _FACTORS, factors[[0, -1]].tolist(), "the factors of Llama 3.1 and 3.2"
            )
        return scaling


_FACTORS = "rope_freqs.weight"
_LLAMA3 = {
    "rope_type": "llama3",
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""What all models have that are published with such positions; a file has its result alone."""


def _linear(scaling: Json) -> Metadata:
    return {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling["factor"])}


def _yarn(scaling: Json) -> Metadata:
    for name, value in _YARN.items():
        if scaling.get(name, value) != value:
            raise unsaid(f"rope_scaling.{name}", scaling[name], f"only {value!r}")
    factor, amplitude = float(scaling["factor"]), scaling.get("attention_factor")
    found: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
    }
    if amplitude is not None:  # llama.cpp multiplies it by the one that the factor implies
        found["rope.scaling.attn_factor"] = amplitude / (0.1 * math.log(factor) + 1.0)
    return found


def _factors(scaling: Json) -> Metadata:
    return {}


def _read_linear(keys: MetadataKeys, factor: float) -> dict[str, Any]:
    return {"rope_type": "linear", "factor": factor}


def _read_yarn(keys: MetadataKeys, factor: float) -> dict[str, Any]:
    length = keys.number("rope.scaling.original_context_length")
    amplitude = keys.number("rope.scaling.attn_factor")
    found = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    if amplitude is not None:
        found["attention_factor"] = amplitude * (0.1 * math.log(factor) + 1.0)
    return found


_READ = {"linear": _read_linear, "yarn": _read_yarn}
"""From the metadata to `rope_scaling`, by type."""
