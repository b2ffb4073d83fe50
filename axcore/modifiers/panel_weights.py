"""`with_panels`: weights of linear layers in panels, for hosts whose kernels read them so."""

from typing import Any

from axcore.config import field_names
from axcore.layers import PanelLinear
from axcore.modifiers.linears import replaced_linears

EXPERTS = "**.expert.**"
"""Experts' weights are stacked; their rows go to products by group."""


def with_panels(cfg: Any) -> Any:
    """Returns `cfg` with a `PanelLinear` in the place of every plain `Linear` that is no expert's.

    The state is changed by `axcore.ops.in_panels`.
    """
    return replaced_linears(cfg, _in_panels, exclude=(EXPERTS,))[0]


def _in_panels(linear: Any) -> PanelLinear.Config:
    shared = set(field_names(linear)) & set(field_names(PanelLinear.Config()))
    return PanelLinear.Config(**{name: getattr(linear, name) for name in shared})
