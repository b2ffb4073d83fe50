"""Calls of the sizes that models have, for compilers to take."""

from typing import Any

from axcore.testing import (
    AttentionTestCase,
    Case,
    GroupedMatmulTestCase,
    attention_case,
    grouped_matmul_case,
)


def attention(name: str, *, tokens: int = 1024, width: int = 128, **fields: Any) -> Case:
    """Causal attention over eight rows, two query heads for each key head."""
    sizes = {"batch": 8, "queries": tokens, "keys": tokens, "heads": 4, "key_heads": 2}
    widths = {"width": width, "value_width": width}
    sample = {**sizes, **widths, "spec": {"right": 0}, **fields}
    return attention_case(AttentionTestCase(name=name, **sample))


def grouped(name: str, group_sizes: tuple[int, ...], **fields: Any) -> Case:
    """A product of rows in groups of some sizes."""
    return grouped_matmul_case(GroupedMatmulTestCase(name=name, group_sizes=group_sizes, **fields))
