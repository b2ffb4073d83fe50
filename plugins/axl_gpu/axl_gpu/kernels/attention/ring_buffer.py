"""A thread block of several warp groups: one fetches blocks into a ring, the others consume them.

What is fetched together is in one slot of a ring that has a few; `arrived` signals to consumers
that a slot is full, and `free` to the fetching group that all consumers are done with it.

Source: Shah et al. 2024, arXiv:2407.08608, section 3.1.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from axl_gpu.kernels.attention.matmuls import Ref

GROUP = "group"
"""The axis along which the warp groups of a thread block are counted; the last one fetches."""

# A processor has 65,536 registers, 512 for each of 128 threads of a warp group, and `setmaxnreg`
# takes multiples of 8. A thread that only begins copies needs few; what it leaves is what lets a
# consumer keep two accumulators without spilling.
CONSUMER_REGISTERS = 240
FETCHER_REGISTERS = 24
"""Of a thread. Two groups of consumers and one that fetches share 504 of a processor's 512."""

Copy = tuple[Ref, Ref]
"""From where in the GPU's memory to where in shared memory, without the slot."""


def at(ref: Ref | None, index: Any) -> Ref | None:
    """Return a part of a reference; None of nothing."""
    return None if ref is None else ref.at[index]


def ring_barriers(num_copies: int, *, num_groups: int, num_stages: int) -> tuple[Any, Any]:
    """Return the barriers `arrived` and `free` of a ring, as scratch memory."""
    # Each copy arrives by itself when it has landed, so this number is that of the copies of a
    # step: one too few, and consumers read a block that is half there; one too many, and they
    # wait for ever.
    arrived = plgpu.Barrier(num_arrivals=num_copies, num_barriers=num_stages)
    # A slot is free once every group of consumers has released it; each goes at its own pace.
    return arrived, plgpu.Barrier(num_arrivals=num_groups, num_barriers=num_stages)


@attrs.frozen(eq=False)
class Ring:
    """One ring, in a kernel.

    Args:
        copies: From a step to what is copied for it.
        arrived: Barrier of each slot.
        free: Barrier of each slot.
        num_stages: Slots.
        first: How many steps it was used for before its own first one.
    """

    copies: Callable[[Array], Sequence[Copy]]
    arrived: Ref
    free: Ref
    num_stages: int
    first: Array | int = 0

    def slot(self, step: Array | int) -> Array:
        """Return the slot in which a step's blocks are."""
        return lax.rem(self.first + step, self.num_stages)

    def fetch(self, step: Array, slot: Array | int) -> None:
        """Begin the copies of a step."""
        for source, target in self.copies(step):
            plgpu.copy_gmem_to_smem(source, target.at[slot], self.arrived.at[slot])

    def wait(self, step: Array | int) -> None:
        """Wait until the blocks of a step are there."""
        plgpu.barrier_wait(self.arrived.at[self.slot(step)])

    def wait_within(self, step: Array | int, num_steps: Array) -> None:
        """Wait until the blocks of a step are there, if it is one of so many."""
        pl.when(step < num_steps)(lambda: self.wait(step))

    def release(self, step: Array) -> None:
        """Signal that this group is done with the blocks of a step."""
        plgpu.barrier_arrive(self.free.at[self.slot(step)])


def fetch_all(rings: Sequence[Ring], num_steps: Array) -> None:
    """Fetch the blocks of all steps into rings of as many slots each, as slots become free."""
    num_stages = rings[0].num_stages

    # The first steps find their slots empty: nobody has arrived at `free`, and waiting would
    # hang.
    def for_each_first_step(act: Callable[[Ring, int], None]) -> None:
        for step in range(num_stages):

            @pl.when(step < num_steps)
            def _(step: int = step) -> None:
                for ring in rings:
                    act(ring, step)

    for_each_first_step(lambda ring, step: ring.fetch(step, step))

    @pl.loop(num_stages, num_steps)
    def _(step: Array) -> None:
        for ring in rings:
            slot = ring.slot(step)
            plgpu.barrier_wait(ring.free.at[slot])
            ring.fetch(step, slot)

    # The loop waited for all uses of a slot but the last one. Each arrival is waited for once, so
    # that barriers end in the phase in which they began.
    for_each_first_step(lambda ring, slot: plgpu.barrier_wait(ring.free.at[slot]))


def fetch_more(rings: Sequence[Ring], num_steps: Array) -> None:
    """Fetch the blocks of all steps into rings that were used before, and may be used again."""

    @pl.loop(0, num_steps)
    def _(step: Array) -> None:
        for ring in rings:
            # Slots are counted through all uses of a ring, not from 0 at each: consumers may
            # still read the last blocks of the use before, which is the point of not waiting
            # between two.
            free = ring.free.at[ring.slot(step)]
            pl.when(ring.first + step >= ring.num_stages)(partial(plgpu.barrier_wait, free))
            ring.fetch(step, ring.slot(step))


def wait_until_free(barriers: Sequence[Ref], num_stages: int, num_steps: Array) -> None:
    """Wait until consumers are done with the blocks of all steps, by the rings' `free`."""
    # Only here, after the last use: `fetch_more` leaves one release of each slot that was used.
    for slot in range(num_stages):

        @pl.when(slot < num_steps)
        def _(slot: int = slot) -> None:
            for free in barriers:
                plgpu.barrier_wait(free.at[slot])


def specialised(
    num_groups: int, *, consume: Callable[[Array], None], fetch: Callable[[], None]
) -> None:
    """Run `consume(group)` in all warp groups of a thread block but the last, which fetches."""
    group = lax.axis_index(GROUP)

    @pl.when(group < num_groups)
    def _() -> None:
        # The hardware keeps this waiting until the fetching group has given its registers back,
        # so no group may leave before, not even one with nothing to compute.
        plgpu.set_max_registers(CONSUMER_REGISTERS, action="increase")
        consume(group)

    @pl.when(group == num_groups)
    def _() -> None:
        plgpu.set_max_registers(FETCHER_REGISTERS, action="decrease")
        fetch()


@attrs.frozen(eq=False)
class WarpGroupTurns:
    """Two warp groups that take turns: one multiplies while the other computes its softmax.

    `give` hands the matrix units over. The second group gives one more at the start, the first one
    more at the end, so that they are always one apart.

    Source: Shah et al. 2024, arXiv:2407.08608, section 3.2.

    Args:
        barrier: Of as many arrivals as groups.
        group: This group's number.
        num_groups: Turns are taken by two groups; one alone has none to take.
    """

    barrier: Ref
    group: Array
    num_groups: int

    def begin(self) -> None:
        """Let the first group go first."""
        if self.num_groups == 2:
            pl.when(self.group == 1)(self.give)

    def end(self) -> None:
        """Let the second group finish."""
        if self.num_groups == 2:
            pl.when(self.group == 0)(self.give)

    def give(self) -> None:
        """Hand over, and wait for the other to do so."""
        # Both must arrive before either passes. By the second group's extra offer at the start
        # its n-th `give` meets the first one's (n+1)-th, and so they never begin products at once.
        self.offer()
        self.take()

    def offer(self) -> None:
        """Signal the other group that this one does not multiply."""
        if self.num_groups == 2:
            plgpu.barrier_arrive(self.barrier)

    def take(self) -> None:
        """Wait for the other group's offer."""
        if self.num_groups == 2:
            plgpu.barrier_wait(self.barrier)
