"""`GGUFRope`: rotary positions in a GGUF file, with the scalings that llama.cpp has."""

import math
from typing import Any

import attrs
import numpy as np

from axcore.interop.config_map import Fields, Json
from axcore.interop.decoder_maps import rope_position
from axcore.interop.gguf_map import GGUFEntry, Metadata, head_width, unsaid
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
        return {"rope_freqs.weight": factors.astype(np.float32)}


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
