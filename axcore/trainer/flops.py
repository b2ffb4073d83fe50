"""Model FLOPs: what a token costs, by a formula that is printed wherever its result is used."""

from typing import Any

from axcore.layers import Attention, Embedding
from axcore.module import Module, Repeated, count_params

FORMULA = "6 N + 6 T d per attention layer"
"""N trainable parameters without embedding tables; T tokens a row; d width of all heads together.

A multiplication and an addition are two operations, and the backward pass costs twice the forward.
Causal attention is counted as half of all pairs, whatever a kernel does.

Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1, with attention as in Chowdhery et al.
2022, arXiv:2204.02311, appendix B, halved for causality.
"""


def flops_per_token(model: Module, seq_len: int) -> float:
    """Returns the model FLOPs of one token, forward and backward, by `FORMULA`."""
    num_matmul = count_params(model.param_specs()) - _count_embeddings(model)
    return 6.0 * num_matmul + 6.0 * seq_len * _attention_width(model)


def _walk(module: Module, times: int) -> Any:
    yield module, times
    for _, child in module.children():
        if isinstance(child, Repeated):
            yield from _walk(child.module, times * child.count)
        else:
            yield from _walk(child, times)


def _count_embeddings(model: Module) -> int:
    tables = (module for module, _ in _walk(model, 1) if isinstance(module, Embedding))
    return sum(count_params(table.param_specs()) for table in tables)


def _attention_width(model: Module) -> int:
    return sum(
        times * module.config.num_heads * module.head_dim
        for module, times in _walk(model, 1)
        if isinstance(module, Attention)
    )
