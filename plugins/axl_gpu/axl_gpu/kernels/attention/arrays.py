"""What the attention kernels are given: arrays of full blocks, and static choices.

Letters: B batch, T queries, S keys, N query heads, K key heads, H key width, V value width, all
but B, N and K padded to full blocks.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import attrs
import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.attention.block_sparsity import Visibility
from axl_gpu.kernels.launch import mosaic_kernel


class Arrays(NamedTuple):
    """The arrays of a call; in a kernel, references to them in the GPU's memory."""

    q_BTNH: Array
    k_BSKH: Array
    v_BSKV: Array
    low_BT: Array
    high_BT: Array
    q_segments_BT: Array | None
    k_segments_BS: Array | None

    @property
    def seen(self) -> Visibility:
        """What queries see, as it comes of `visibility`."""
        return Visibility(*self[3:])


class Residuals(NamedTuple):
    """What backward needs of each query in addition to the call's arrays; float32 but for `do`.

    `lse_BNT` is in base 2, and 0 for rows that saw nothing; `delta_BNT` is `sum(do * o) - dlse`.
    """

    do_BTNV: Array
    lse_BNT: Array
    delta_BNT: Array


@attrs.frozen
class ForwardBlockSizes:
    """How many queries and keys a warp group works on at once, multiples of 64.

    Args:
        queries: Of a block.
        keys: Of a block.
        num_groups: Warp groups of a thread block, which share what they go through and have rows
            each of their own.
        num_stages: Blocks that are in shared memory at once; two or more where one group fetches.
        num_programs: Thread blocks of the forward kernel, which share the blocks of queries of all
            heads between them; None for one for each.
    """

    queries: int
    keys: int
    num_groups: int = 1
    num_stages: int = 1
    num_programs: int | None = None


@attrs.frozen(kw_only=True)
class Choices:
    """The static choices of a kernel."""

    scale: float
    soft_cap: float | None
    blocks: ForwardBlockSizes


def shape_like(x: Any, **changes: Any) -> jax.ShapeDtypeStruct:
    """Return the shape of an array, or another, of its dtype, or another."""
    return jax.ShapeDtypeStruct(changes.get("shape", x.shape), changes.get("dtype", x.dtype))


def launch(
    body: Any,
    outputs: Any,
    *,
    name: str,
    grid: Mapping[str, int],
    scratch: Mapping[str, Any],
    interpreter: Any,
    num_threads: int = 1,
) -> Any:
    """Return the kernel as a function of arrays.

    Args:
        body: From references to inputs and outputs, and by name to scratch memory.
        outputs: Shapes of what it writes.
        name: What profilers show.
        grid: How many thread blocks there are along each axis, the fastest first.
        scratch: Shared memory and barriers.
        interpreter: Parameters of Pallas' interpreter for Mosaic GPU; None for a GPU.
        num_threads: Warp groups of a thread block, whose own number is along the axis `group`.
    """
    return mosaic_kernel(
        body,
        outputs,
        scratch=scratch,
        compiler_params=COMPILER_PARAMS,
        interpret=interpreter,
        **_mesh(name, grid, num_threads),
    )


def launch_with_sum(
    body: Any,
    outputs: Any,
    added: jax.ShapeDtypeStruct,
    *,
    name: str,
    grid: Mapping[str, int],
    scratch: Mapping[str, Any],
    interpreter: Any,
    num_threads: int,
) -> Any:
    """Return a kernel whose thread blocks add to one array, which is returned before its outputs.

    `body` gets the array, zeros at first, between inputs and outputs. The rest is as in `launch`.
    """
    mesh = plgpu.Mesh(**_mesh(name, grid, num_threads))

    def scoped(*refs: Any) -> None:
        pl.run_scoped(partial(body, *refs), collective_axes=mesh.thread_name, **scratch)

    kernel = pl.kernel(
        scoped,
        out_type=outputs,
        mesh=mesh,
        compiler_params=COMPILER_PARAMS,
        interpret=interpreter,
        name=name,
    )

    def run(*arrays: Any) -> tuple[Array, ...]:
        # A kernel's own output begins as whatever was in memory, and no thread block can clear it
        # before all others add. So it is a reference made with zeros.
        sums = jax.new_ref(jnp.zeros(added.shape, added.dtype), memory_space=plgpu.GMEM)
        made = kernel(*arrays, sums)
        return jax.freeze(sums), *made

    return run


# `approx_math` makes exponentials one instruction. It would make `tanh` one as well, which is why
# `block.logits` has none.
COMPILER_PARAMS = plgpu.CompilerParams(
    approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Warpgroup
)


def _mesh(name: str, grid: Mapping[str, int], num_threads: int) -> dict[str, Any]:
    slowest_first = dict(reversed(grid.items()))  # as Pallas has it
    threads: dict[str, Any] = (
        {"num_threads": num_threads, "thread_name": "group"} if num_threads > 1 else {}
    )
    return {
        "grid": tuple(slowest_first.values()),
        "grid_names": tuple(slowest_first),
        "kernel_name": name,
        **threads,
    }
