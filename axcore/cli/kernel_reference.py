"""The tables of docs/kernels.md, made from the records of ops, kernels and hardware.

`python -m axcore.cli.kernel_reference` writes them, in a checkout of axcore where axcore and all of
its plugins are installed. What is before and after them on the page is written by hand.
"""

from collections.abc import Iterator
from pathlib import Path

import attrs

from axcore.ops import Call, KernelPreference
from axcore.ops.dispatch import op_kernels
from axcore.ops.verdicts import CHOICES, verdicts
from axcore.plugins import Hardware, HardwareFamily, Kernel, Op, plugin_host
from axcore.report.table import markdown_table

COMMAND = "python -m axcore.cli.kernel_reference"
PAGE = Path("docs/kernels.md")
BEGIN, END = f"<!-- made by `{COMMAND}` -->\n", "<!-- end of what is made -->\n"


def with_reference(page: str) -> str:
    """Return a page with the tables of now between its two markers."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + kernel_reference() + END + rest.partition(END)[2]


def kernel_reference() -> str:
    """Return what serves each op's typical call on each chip, and the kernels of each op."""
    ops = [op for op in plugin_host().records(Op) if op_kernels(op.name)]
    ops.sort(key=lambda op: op.name)
    chips = [host for one in plugin_host().records(HardwareFamily) for host in one.hosts]
    served = [row for op in ops if op.arg_spec is not None for row in _served(op, chips)]
    heads = ("op", "chips", "by default", "`kernels.choice=fastest`")
    parts = ["## What serves a typical call", "", markdown_table(heads, served), ""]
    for op in ops:
        parts += _kernels(op, chips)
    return "\n".join(parts)


def _served(op: Op, chips: list[Hardware]) -> Iterator[tuple[str, ...]]:
    """Yield a row for the chips on which the same kernels serve an op's typical call."""
    assert op.arg_spec is not None
    call = op.arg_spec.resolve()()
    rows: dict[tuple[str, ...], list[str]] = {}
    for chip in chips:
        names = tuple(_serving(call, chip, choice) for choice in CHOICES)
        rows.setdefault(names, []).append(chip.chip)
    for names, served in rows.items():
        yield f"`{op.name}`", _globs(served, chips), *names


def _serving(call: Call, chip: Hardware, kernel_choice: KernelPreference) -> str:
    """Return the kernel that serves a call, in words."""
    forward = attrs.evolve(call, op=call.op.removesuffix("_backward"))
    if forward != call:
        backward = {kernel.name for kernel in op_kernels(call.op)}
        for kernel in _first(forward, chip, kernel_choice):
            if kernel.is_differentiable:
                return f"`{kernel.name}` brings it"
            if kernel.name in backward:
                return f"`{kernel.name}`"
    names = [f"`{kernel.name}`" for kernel in _first(call, chip, kernel_choice)]
    return " or ".join(names) or "none, unless `portable` is allowed"


def _first(call: Call, chip: Hardware, kernel_choice: KernelPreference) -> list[Kernel]:
    found = verdicts(call.op, call, chip)
    return [one.kernel for one in found if kernel_choice in one.serves_with]


def _kernels(op: Op, chips: list[Hardware]) -> list[str]:
    """Return an op's section: its kernels, and why some run only where they are pinned."""
    kernels = op_kernels(op.name)
    heads = ("kernel", "plugin", "what it is", "for", "validated on", "goes before")
    pinned = [one for one in kernels if one.pinned_only is not None and one.band != "reference"]
    return [
        f"## `{op.name}`",
        "",
        f"{op.summary}.",
        "",
        *_names(op),
        markdown_table(heads, [_cells(kernel, chips) for kernel in kernels]),
        "",
        *(f"- `{one.name}` runs only when pinned: {one.pinned_only}." for one in pinned),
        *[""][: len(pinned)],
    ]


def _names(op: Op) -> list[str]:
    """Return the names by which kernels ask a `Call` of the op for what it has."""
    if op.arg_spec is not None:
        call = op.arg_spec.resolve()()
    elif op.contract is not None:
        call = op.contract.resolve().cases[0].abstract_call("float32")
    else:
        return []
    arrays = [f"`{name}`" for name, _ in call.shapes]
    optional = [f"`{name}`" for name in call.absent or ()]
    features = [f"`{name}`" for name, _ in call.features]
    lines = [f"- Arrays of a `Call`: {', '.join((*arrays, *optional))}."]
    if features:
        lines.append(f"- Features: {', '.join(features)}.")
    return [*lines, ""]


def _cells(kernel: Kernel, chips: list[Hardware]) -> tuple[str, ...]:
    able = [chip.chip for chip in chips if kernel.unsupported_hardware_reason(chip) is None]
    ran = [chip.chip for chip in chips if kernel.is_validated_on(chip) and chip.chip in able]
    before = ", ".join(f"`{name}`" for name in kernel.preferred_to)
    what = kernel.summary or "What the op means"
    name = f"`{kernel.name}`"
    return name, kernel.plugin, what, _globs(able, chips), _globs(ran, chips), before


def _globs(names: list[str], chips: list[Hardware]) -> str:
    """Return names of chips, with `family-*` where all of a family are among them."""
    if len(names) == len(chips):
        return "any"
    families = {one.family: [chip for chip in chips if chip.family == one.family] for one in chips}
    shown: list[str] = []
    for family, members in families.items():
        among = [chip.chip for chip in members if chip.chip in names]
        shown += [f"{family}-*"] if len(among) == len(members) > 1 else among
    return ", ".join(shown)


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
