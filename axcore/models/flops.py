"""Model FLOPs: what a token costs, by a formula that is printed with its result."""

from typing import Any

from axcore.module import Module, StackedModule, count_params

FORMULA = "6 N + 6 T d per attention layer"
"""N trainable parameters that a token is multiplied by: all but embedding tables that are only
looked up, and the experts that it does not go to; T tokens a row; d width of all heads together,
the mean of keys' and values' where they differ.

A multiplication and an addition are two operations, and the backward pass costs twice the forward.
Causal attention is counted as half of all pairs, whatever a kernel does, and whatever a window
hides.

Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1, with attention as in Chowdhery et al.
2022, arXiv:2204.02311, appendix B, halved for causality.
"""


def flops_per_token(model: Module, seq_len: int) -> float:
    """Returns the model FLOPs of one token, forward and backward, by `FORMULA`.

    Modules say what differs from one product per parameter: `attention_width`, the width of their
    heads, and `inactive_params`, how many of the parameters in them an average token is not
    multiplied by (below zero where it is multiplied by another module's).
    """
    modules = list(_walk(model, 1))
    idle: float = sum(times * getattr(module, "inactive_params", 0) for module, times in modules)
    width: float = sum(times * getattr(module, "attention_width", 0) for module, times in modules)
    return 6.0 * (count_params(model.param_specs()) - idle) + 6.0 * seq_len * width


def _walk(module: Module, times: int) -> Any:
    yield module, times
    for _, child in module.children():
        if isinstance(child, StackedModule):
            yield from _walk(child.module, times * child.count)
        else:
            yield from _walk(child, times)
