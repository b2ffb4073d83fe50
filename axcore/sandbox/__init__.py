"""Runs programs that a model wrote where they can do no harm, and judges them from outside."""

from axcore.sandbox.mechanisms import INSTALL_HINT, MECHANISMS
from axcore.sandbox.programs import (
    ProgramLimits,
    Verdict,
    choose_mechanism,
    run_program,
    why_not,
)

__all__ = [
    "INSTALL_HINT",
    "MECHANISMS",
    "ProgramLimits",
    "Verdict",
    "choose_mechanism",
    "run_program",
    "why_not",
]
