"""Forms in which linear layers that serve keep the `weight` that was trained.

Letters of shapes: E experts, K input, N output.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Array, Float

from axcore.layers.panel_linear import PANELS, kept_in_panels
from axcore.layers.quantization.stored_weights import VALUES, kept_narrow

FORMS: Mapping[str, Callable[[Any, Array], dict[str, Array]]] = {
    PANELS: kept_in_panels,
    VALUES: kept_narrow,
}
"""By the name of an array that only layers of one form have."""


def kept_weight(specs: Any, weight: Float[Array, "*E K N"]) -> dict[str, Array]:
    """Returns the arrays that a weight is kept as, by name.

    Args:
        specs: Those of the layer that keeps it, which has no `weight`.
        weight: As it was trained.
    """
    (form,) = (form for name, form in FORMS.items() if name in specs)
    return form(specs, weight)
