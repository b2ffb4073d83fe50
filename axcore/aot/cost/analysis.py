"""`analyse`: a compiled program, read off its text."""

from collections.abc import Iterable, Sequence

import attrs

from axcore.aot.cost.custom_kernels import CustomKernel, custom_kernels
from axcore.aot.cost.times import Cost, costs, kernel_s, waiting_s
from axcore.aot.hlo.collectives import Collective, collectives
from axcore.aot.hlo.program import Program
from axcore.ops import ChosenKernel
from axcore.plugins import Hardware


@attrs.frozen(kw_only=True)
class ProgramAnalysis:
    """A program's costs, kernels and collectives, and how long those wait; None where unknown."""

    costs: tuple[Cost, ...]
    kernels: tuple[CustomKernel, ...]
    collectives: tuple[Collective, ...]
    compute_s: float | None
    kernels_s: float | None
    waits_s: tuple[float, ...] | None


def analyse(
    program: Program, hardware: Hardware, choices: Sequence[ChosenKernel]
) -> ProgramAnalysis:
    """Returns what a program costs.

    Args:
        program: The program.
        hardware: What it runs on.
        choices: The kernels that were chosen while it was traced.
    """
    kernels = tuple(custom_kernels(program, choices))
    work = costs(program, hardware, kernels)
    found = tuple(collectives(program, hardware))
    return ProgramAnalysis(
        costs=work,
        kernels=kernels,
        collectives=found,
        compute_s=total_s(one.seconds for one in work),
        kernels_s=total_s(kernel_s(one, hardware) for one in kernels),
        waits_s=waiting_s(program, found, work, kernels, hardware),
    )


def total_s(parts: Iterable[float | None]) -> float | None:
    """Returns the sum, None where a part is not known."""
    known = list(parts)
    return None if None in known else float(sum(part for part in known if part is not None))
