"""`FlippedValues`: finds values that no training makes in a state that is about to be saved.

Flipped in memory, the highest bit of an exponent multiplies a float by 2**128: 0.02 becomes 7e36.
That is finite, and so no step refuses it. No other flip takes a float below 2 to 2 or above.

The sum of squares of an array shows it: in float32 that is infinite where a value is above 1.8e19,
and it takes no longer than to read the array from memory. An array that is so large from the start,
as a mask may be, is left alone, and so are buffers, which follow rules of their own.
"""

import itertools
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from axcore.checkpoint.leaves import name_leaves
from axcore.distributed import decide_together
from axcore.module import ParamSpec
from axcore.trainer.guards import RollbackRequest
from axcore.trainer.step import TrainState

# A mebibyte of float32.
_PIECE = 1 << 18
"""Elements that are converted to float32 at a time, which stay in a cache."""

_WIDE = ("float32", "float64", "bfloat16")
"""Those whose exponents have eight bits or more; no flip makes others large."""


class FlippedValues:
    """Compares states with those before them.

    Args:
        specs: What the model's state consists of.
    """

    def __init__(self, specs: Mapping[str, Any]) -> None:
        is_spec = lambda leaf: isinstance(leaf, ParamSpec)  # noqa: E731
        found = name_leaves(specs, is_leaf=is_spec).items()
        self._params = {name for name, spec in found if not spec.is_buffer}
        self._sums: dict[str, float] = {}
        self._step = 0

    def take(self, step: int, state: TrainState) -> None:
        """Take a state as whole, such as the first or one that was restored."""
        self._step, self._sums = step, self._sums_of(state)

    def check(self, step: int, state: TrainState) -> None:
        """Compare a state with the last one that was whole.

        Raises:
            RollbackRequest: A value of a parameter or of an optimizer's moment is far too large, in
                any process.
        """
        sums = self._sums_of(state)
        large = [name for name, found in sums.items() if self._is_flipped(name, found)]
        leaves = name_leaves(state)
        own = [(name, repr(_largest(leaves[name]))) for name in large]
        # In all processes together, as all must roll back or none.
        flipped = decide_together("looking for flipped bits", lambda: own, _by_name)
        if flipped:
            name, value = next(iter(flipped.items()))
            more = f", and {len(flipped) - 1} more arrays" if len(flipped) > 1 else ""
            raise RollbackRequest(
                # The square of a value above 1.8e19 overflows float32, which is what the sum of
                # squares shows. A flipped top bit of an exponent multiplies by 2**64 or more.
                f"{name} contains {float(value):.3g} at step {step}{more}, nothing above 1.8e19 "
                f"at step {self._step}, as where a bit flips in memory: it was not saved",
                skips_data=False,
            )
        self._step, self._sums = step, sums

    def _is_flipped(self, name: str, now: float) -> bool:
        # A comparison with the last intact state: a model
        # with such values from the start is nobody's fault.
        before = self._sums[name]
        # Moments begin at 0, which says nothing of how large their gradients are.
        is_known = name.startswith("model.") or before > 0
        return is_known and bool(np.isfinite(before)) and not np.isfinite(now)

    def _sums_of(self, state: TrainState) -> dict[str, float]:
        """Return the sum of squares of each array that is judged."""
        leaves = name_leaves(state).items()
        judged = {name: leaf for name, leaf in leaves if self._is_judged(name, leaf)}
        shards = {name: list(_shards(leaf)) for name, leaf in judged.items()}
        # Copies to the host that the save makes anyway, begun together.
        for data in itertools.chain(*shards.values()):
            data.copy_to_host_async()
        # numpy's dot runs without the GIL.
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            of_shards = {
                # Only what this process saves, so each array is looked at once in all.
                name: [pool.submit(_square_sum, np.asarray(data)) for data in pieces]
                for name, pieces in shards.items()
            }
            return {name: sum(one.result() for one in ones) for name, ones in of_shards.items()}

    def _is_judged(self, name: str, leaf: Any) -> bool:
        kind, *steps = name.split(".")
        if str(leaf.dtype) not in _WIDE:
            return False
        if kind == "model":
            return ".".join(steps) in self._params
        # What an optimizer keeps of a parameter ends with the parameter's path.
        return any(".".join(steps[i:]) in self._params for i in range(1, len(steps)))


def _shards(leaf: Any) -> Iterable[jax.Array]:
    """Return what this process saves of an array, of replicas the one that is written."""
    written = sorted(leaf.addressable_shards, key=lambda shard: shard.replica_id)
    return {str(shard.index): shard.data for shard in reversed(written)}.values()


def _by_name(found: list[Any]) -> dict[str, str]:
    """Return the values that processes found, by the names of their arrays."""
    return {name: value for pairs in found for name, value in pairs}


def _square_sum(data: NDArray[Any]) -> float:
    flat = data.ravel(order="K")  # in memory order; another order would be a copy
    with np.errstate(over="ignore"):
        if flat.dtype == np.float32:
            return float(np.dot(flat, flat))
        pieces = (flat[at : at + _PIECE].astype(np.float32) for at in range(0, flat.size, _PIECE))
        return float(sum(float(np.dot(piece, piece)) for piece in pieces))


def _largest(leaf: Any) -> float:
    """Return the value of the largest size, with its sign."""
    values = np.concatenate([np.asarray(data, np.float32).reshape(-1) for data in _shards(leaf)])
    return float(values[np.argmax(np.abs(values))])
