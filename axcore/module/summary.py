"""`summary_table`: a model's parameters as a table, without making any."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from axcore.markup import card, element, table
from axcore.module.param import ParamSpec, count_params

if TYPE_CHECKING:
    from axcore.module.module import Module

_HEADER = ("path", "shape", "dtype", "axes", "count")


def summary_table(module: "Module") -> str:
    """Return one line a parameter, as they are declared, with its exact size, and the totals.

    Statistics are marked, and counted apart. Allocates nothing.
    """
    specs = module.param_specs()
    leaves = list(_leaves(specs))
    total, *buffers = _totals(specs, leaves)
    lines = [*_aligned([_HEADER, *map(_row, leaves)]), f"total: {total}"]
    return "\n".join([*lines, *(f"       {line}" for line in buffers)]) + "\n"


def summary_html(module: "Module") -> str:
    """Return the same as HTML for a notebook."""
    specs = module.param_specs()
    leaves = list(_leaves(specs))
    rows = [[element("code", cell) for cell in _row(spec)] for spec in leaves]
    note = "; ".join(_totals(specs, leaves))
    return card(type(module).__qualname__, note, table(_HEADER, rows, numbers=("count",)))


def _totals(specs: Any, leaves: list[ParamSpec]) -> list[str]:
    """Return the size of what is trained, and of what is not where there is some."""
    num_trainable = count_params(specs)
    num_buffers = count_params(specs, trainable_only=False) - num_trainable
    total = f"{num_trainable:,} parameters, {_bytes(leaves):,} bytes"
    return [total, *[f"{num_buffers:,} elements of buffers, not trained"] * (num_buffers > 0)]


def _leaves(specs: Any) -> Iterator[ParamSpec]:
    if isinstance(specs, ParamSpec):
        yield specs
        return
    for below in specs.values():
        yield from _leaves(below)


def _row(spec: ParamSpec) -> tuple[str, ...]:
    shape = "x".join(map(str, spec.shape)) or "scalar"
    axes = ", ".join(axis or "-" for axis in spec.axes)
    mark = " (buffer)" if spec.is_buffer else ""
    return spec.name + mark, shape, spec.dtype, axes, f"{spec.size:,}"


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i == len(widths) - 1 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _bytes(leaves: Iterable[ParamSpec]) -> int:
    return sum(spec.nbytes for spec in leaves)
