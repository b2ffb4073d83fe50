"""Model FLOPs: what a token costs, by a formula that is printed wherever its result is used."""

from typing import Any

from axcore.layers import Embedding, MoE
from axcore.models import TiedHead
from axcore.module import Module, Repeated, count_params

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
    """Returns the model FLOPs of one token, forward and backward, by `FORMULA`."""
    modules = list(_walk(model, 1))
    num_matmul = count_params(model.param_specs()) - _num_idle(modules)
    width = sum(times * getattr(module, "attention_width", 0) for module, times in modules)
    return 6.0 * num_matmul + 6.0 * seq_len * width


def _walk(module: Module, times: int) -> Any:
    yield module, times
    for _, child in module.children():
        if isinstance(child, Repeated):
            yield from _walk(child.module, times * child.count)
        else:
            yield from _walk(child, times)


def _num_idle(modules: list[tuple[Module, int]]) -> float:
    """Returns the number of parameters that an average token is not multiplied by."""
    is_tied = any(isinstance(module, TiedHead) for module, _ in modules)
    idle = 0.0
    for module, times in modules:
        if isinstance(module, Embedding) and not is_tied:
            idle += times * count_params(module.param_specs())
        elif isinstance(module, MoE):
            share = 1.0 - module.config.top_k / module.config.num_experts
            idle += times * share * count_params(module.experts.param_specs())
    return idle
