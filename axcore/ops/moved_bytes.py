"""How many bytes a kernel moves that is given more than it reads, as a scope of the program.

A kernel that reads pages of a cache is given all of it. Who calls one says in a scope what it moves
at most, which whoever predicts the program's time reads.
"""

import re
from contextlib import AbstractContextManager

import jax

_SCOPE = re.compile(r"\bmoves_(\d+)_bytes\b")


def moved_bytes_scope(nbytes: int) -> AbstractContextManager[None]:
    """Return a scope for a kernel that moves so many bytes a run."""
    scope: AbstractContextManager[None] = jax.named_scope(f"moves_{nbytes}_bytes")
    return scope


def moved_bytes_of(op_name: str) -> int | None:
    """Return the bytes of the innermost such scope; None where there is none."""
    found = _SCOPE.findall(op_name)
    return int(found[-1]) if found else None
