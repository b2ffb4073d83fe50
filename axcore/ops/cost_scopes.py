"""Scopes in a program that report what its operations cost, where shapes do not.

`axcore.complexity` reads them in what was compiled. A kernel that reads pages of a cache is given
all of the cache: its scope says how many bytes it moves at most. Rows of no group cost a grouped
matmul nothing, but their number is only known once the program runs: its scope says which share of
the rows is expected to be of a group.
"""

import re
from contextlib import AbstractContextManager

import jax

_MOVED_BYTES = re.compile(r"\bmoves_(\d+)_bytes\b")


def moved_bytes_scope(nbytes: int) -> AbstractContextManager[None]:
    """Return a scope for a kernel that moves so many bytes a run."""
    scope: AbstractContextManager[None] = jax.named_scope(f"moves_{nbytes}_bytes")
    return scope


def moved_bytes_of(op_name: str) -> int | None:
    """Return the bytes of the innermost such scope; None where there is none."""
    found = _MOVED_BYTES.findall(op_name)
    return int(found[-1]) if found else None


_OCCUPIED = re.compile(r"\boccupied_([\d.]+)")


def occupancy_scope(share: float) -> AbstractContextManager[None]:
    """Return a scope for products of whose rows this share is expected to be of a group."""
    scope: AbstractContextManager[None] = jax.named_scope(f"occupied_{share:.4f}")
    return scope


def occupancy_of(op_name: str) -> float:
    """Return the share of the innermost such scope; 1 where there is none."""
    shares = _OCCUPIED.findall(op_name)
    return float(shares[-1]) if shares else 1.0
