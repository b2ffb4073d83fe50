"""How many rows of a grouped matmul are expected to be of any group, as a scope of the program.

Rows of no group cost no product, but their number is only known once the program runs. Who has room
for more rows than come says so in a scope, which whoever predicts the program's time reads.
"""

import re
from contextlib import AbstractContextManager

import jax

_SCOPE = re.compile(r"\boccupied_([\d.]+)")


def occupancy_scope(share: float) -> AbstractContextManager[None]:
    """Return a scope for products of whose rows this share is expected to be of a group."""
    scope: AbstractContextManager[None] = jax.named_scope(f"occupied_{share:.4f}")
    return scope


def occupancy_of(op_name: str) -> float:
    """Return the share of the innermost such scope; 1 where there is none."""
    shares = _SCOPE.findall(op_name)
    return float(shares[-1]) if shares else 1.0
