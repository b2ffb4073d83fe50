"""What layers may keep for the backward pass: the names of their values, and presets over them.

The layers give their larger values names, as ops do with their residuals; a `Remat` config says by
name what becomes of them. What is not kept is computed again from what the layer was given.
"""

from collections.abc import Mapping

from axcore.module import Remat
from axcore.ops import ATTENTION_LSE, ATTENTION_OUT

ATTENTION_QUERY = "attention_query"
ATTENTION_KEY = "attention_key"
ATTENTION_VALUE = "attention_value"
ATTENTION_PROJECTED = "attention_projected"
FEED_FORWARD_GATE = "feed_forward_gate"
FEED_FORWARD_UP = "feed_forward_up"

_RESIDUALS = (ATTENTION_OUT, ATTENTION_LSE)
_HEADS = (ATTENTION_QUERY, ATTENTION_KEY, ATTENTION_VALUE)
_GATE = (ATTENTION_PROJECTED, FEED_FORWARD_GATE)
_WIDE = (*_GATE, FEED_FORWARD_UP)

REMAT_PRESETS: Mapping[str, Remat | None] = {
    "none": None,
    "full": Remat(),
    "save_attention": Remat(save=_RESIDUALS),
    "save_heads": Remat(save=(*_HEADS, *_RESIDUALS)),
    "save_gate": Remat(save=(*_HEADS, *_RESIDUALS, *_GATE)),
    "minimal": Remat(save=(*_HEADS, *_RESIDUALS, *_WIDE)),
    "offload_attention": Remat(save=(ATTENTION_LSE,), offload=(*_HEADS, ATTENTION_OUT)),
    "offload_minimal": Remat(save=(ATTENTION_LSE,), offload=(*_HEADS, ATTENTION_OUT, *_WIDE)),
}
"""By name, from most memory to least computation: `none` keeps every value; `full` nothing within a
layer; `save_attention` what spares the attention kernel a second run; `save_heads` the projections
before it too; `save_gate` also the one after it and the gate of the feed-forward; `minimal` every
product, so that only cheap values are computed again. Those named `offload_...` keep in the host's
memory what their namesakes keep in the device's.
"""
