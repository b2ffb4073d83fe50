"""Drawing tokens: settings as arrays, filters without a sort, and the draw itself."""

from axcore.inference.drawing.draw import (
    DrawKind,
    LogProbs,
    changed_logits,
    draw,
    kind_for,
    log_probabilities,
    scaled_logits,
)
from axcore.inference.drawing.history import TokenHistory, empty_history
from axcore.inference.drawing.sampling_rows import (
    SamplingRows,
    greedy_rows,
    row_keys,
    sampling_rows,
)
from axcore.inference.drawing.token_masks import allowed_tokens, mask_logits, packed_mask

__all__ = [
    "DrawKind",
    "LogProbs",
    "SamplingRows",
    "TokenHistory",
    "allowed_tokens",
    "changed_logits",
    "draw",
    "empty_history",
    "greedy_rows",
    "kind_for",
    "log_probabilities",
    "mask_logits",
    "packed_mask",
    "row_keys",
    "sampling_rows",
    "scaled_logits",
]
