"""Calling an NKI kernel from JAX, and rows of an array as tiles for a NeuronCore's partitions.

With AWS's SDK a kernel takes JAX arrays as it is. The simulator's kernels take numpy arrays, so
they run on the host, by a callback. Neuron's own JAX has no host callbacks, and there the simulator
is refused.

Letters: M tiles of P rows, D width.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from axcore.errors import KernelError
from axl_trainium.hardware import PARTITIONS
from axl_trainium.sdk import IS_SDK


def missing_sdk_reason() -> str | None:
    """Return None where NKI kernels can run in this process, else the reason why not."""
    is_chip = jax.default_backend() == "neuron"
    if IS_SDK and not is_chip:
        return "NKI is installed, whose kernels run on a chip, and there is none"
    if is_chip and not IS_SDK:
        return "NKI is not installed, and its simulator does not run on a chip"
    return None


def call_kernel(kernel: Callable[..., Any], outputs: Any, *arrays: Array, **choices: Any) -> Any:
    """Return `kernel(*arrays, **choices)`.

    Args:
        kernel: Under `nki.jit`.
        outputs: `jax.ShapeDtypeStruct`s of what it returns, one or a tuple.
        *arrays: Its tensors.
        **choices: Its static arguments.

    Raises:
        KernelError: Kernels cannot run in this process.
    """
    reason = missing_sdk_reason()
    if reason is not None:
        raise KernelError(
            f"{getattr(kernel, '__name__', kernel)} is an NKI kernel: {reason}.",
            hint="run it on Trainium with the AWS Neuron SDK installed, or remove the pin",
        )
    if IS_SDK:
        return kernel(*arrays, **choices)

    def on_host(*arrays: Any) -> Any:
        return kernel(*(np.asarray(array) for array in arrays), **choices)

    return jax.pure_callback(on_host, outputs, *arrays, vmap_method="sequential")


def float32_like(*shape: int) -> jax.ShapeDtypeStruct:
    """Return the description of a float32 array."""
    return jax.ShapeDtypeStruct(shape, np.float32)


def tiled(x: Array, height: int = PARTITIONS) -> Array:
    """Return the rows of the last dimension in tiles `[M, P, D]`, P at most `height`.

    Rows of zeros fill the last tile.
    """
    rows = x.reshape(-1, x.shape[-1])
    height = min(len(rows), height)
    padded = jnp.pad(rows, ((0, -len(rows) % height), (0, 0)))
    return padded.reshape(-1, height, x.shape[-1])


def untiled(x_MPD: Array, shape: tuple[int, ...], *, num_rows: int) -> Array:
    """Return the first rows in a shape, without those that filled the last tile."""
    return x_MPD.reshape(-1, x_MPD.shape[-1])[:num_rows].reshape(shape)
