"""Whether the host has room for weights, asked before a process dies of reading them."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from axcore.errors import CheckpointError
from axcore.hardware.process_memory import host_bytes

_GIB = 2**30


def check_host_holds(leaves: Iterable[Any]) -> None:
    """Checks that there is memory for what host processors keep of some arrays.

    Args:
        leaves: Descriptions of the arrays: shapes, dtypes and shardings.

    Raises:
        CheckpointError: There is not.
    """
    needed = Counter[str]()
    for leaf in leaves:
        needed[np.dtype(leaf.dtype).name] += _host_bytes_of(leaf)
    if needed.total() <= host_bytes():
        return
    parts = ", ".join(f"{size / _GIB:.3g} GiB as {dtype}" for dtype, size in needed.items() if size)
    raise CheckpointError(
        f"the weights need {needed.total() / _GIB:.3g} GiB of the host's memory ({parts}), which "
        f"has {host_bytes() / _GIB:.3g} GiB",
        hint="ask for a dtype of fewer bytes, or read them on a larger host, or on devices with "
        "memory of their own",
    )


def _host_bytes_of(leaf: Any) -> int:
    """Returns the bytes of an array that host processors of this process will keep."""
    if leaf.sharding is None:
        devices, shape = jax.local_devices()[:1], leaf.shape
    else:
        devices, shape = leaf.sharding.addressable_devices, leaf.sharding.shard_shape(leaf.shape)
    num_hosts = len([one for one in devices if one.platform == "cpu"])
    return int(num_hosts * math.prod(shape) * np.dtype(leaf.dtype).itemsize)
