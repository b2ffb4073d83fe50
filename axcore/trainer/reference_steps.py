"""Steps of a run computed by its kernels and by the core's own, to find a kernel at fault.

A run whose numbers are not finite, or not plausible, is computed again from its newest checkpoint,
op by op with both. Nothing is written.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import jax

from axcore.checkpoint import Checkpointer
from axcore.distributed import process_count
from axcore.errors import ConfigError, KernelError
from axcore.ops import Difference, KernelComparison, comparing_kernels, how_to_continue_without
from axcore.plugins import wanted_compiler_options
from axcore.trainer.recovery import Rollbacks

if TYPE_CHECKING:
    from axcore.trainer.trainer import Trainer


@attrs.frozen(kw_only=True)
class ReferenceSteps:
    """What steps by both kernels gave.

    Args:
        first: The first step that was computed.
        last: The last one: that with differences, or that is not finite, if there is any.
        kernels: The kernels that were compared; empty where the core's own serve everything.
        differences: Where kernels differ, in the order in which the model calls them.
        is_finite: Whether the last step's loss, gradients and update are.
    """

    first: int
    last: int
    kernels: tuple[str, ...]
    differences: tuple[Difference, ...]
    is_finite: bool

    def check(self) -> None:
        """Raise where a kernel differs.

        Raises:
            KernelError: Naming the op, the kernel and the module.
        """
        if not self.differences:
            return
        found = self.differences[0]
        raise KernelError(
            f"step {self.last}: " + "\n".join(map(str, self.differences)),
            where=found.module,
            hint=f"report it to the authors of {found.kernel.plugin}; "
            f"{how_to_continue_without(found.kernel)}",
        )

    def __str__(self) -> str:
        steps = f"steps {self.first} to {self.last}"
        if not self.kernels:
            text = f"{steps}: axcore's own kernels serve every op, so there is nothing to compare"
        else:
            text = f"{steps}: {', '.join(self.kernels)} agree with axcore's own kernels"
        if self.is_finite:
            return text
        return (
            f"{text}; the loss, gradients or update of step {self.last} are not finite for another "
            "reason: lower learner.schedule.peak, or look at the data of this step"
        )


def compare_steps(trainer: "Trainer", directory: Path, *, num_steps: int) -> ReferenceSteps:
    """Return what steps from a run's newest checkpoint on give by both kernels.

    It stops at the first step with a difference, or that is not finite. Guards do not see these
    steps.

    Args:
        trainer: The trainer of the run.
        directory: The run directory; without a checkpoint steps begin from the first state.
        num_steps: How many steps at most.

    Raises:
        ConfigError: The run has several processes, or its batches follow the weights.
    """
    batches = trainer.train_batches()
    if process_count() > 1 or batches.follows_policy:
        raise ConfigError(
            "steps are compared by one process, with batches that do not depend on the weights",
            hint="compare a smaller config of the model on one host",
        )
    comparison = KernelComparison()
    compiler, options = trainer.compiler, dict(wanted_compiler_options(trainer.hardware)) or None
    with jax.set_mesh(trainer.mesh):
        state, first = _newest_state(trainer, directory, batches)
        with comparing_kernels(comparison):
            lowered = compiler.jitted_step.lower(
                compiler.abstract_state(), compiler.batch.abstract()
            )
        step = lowered.compile(compiler_options=options)
        last, is_finite = first, True
        differences: tuple[Difference, ...] = ()
        while is_finite and not differences and last < first + num_steps:
            last += 1
            batch = trainer.batch_sharding.device_put(next(batches))
            state, metrics = step(state, batch)
            jax.block_until_ready(state)  # type: ignore[no-untyped-call]
            jax.effects_barrier()  # type: ignore[no-untyped-call]
            is_finite, differences = bool(metrics.is_finite), tuple(comparison.differences())
    return ReferenceSteps(
        first=first + 1,
        last=last,
        kernels=comparison.kernels,
        differences=differences,
        is_finite=is_finite,
    )


def _newest_state(trainer: "Trainer", directory: Path, batches: Any) -> tuple[Any, int]:
    """Return the newest saved state and its step, and take batches there; else the first one."""
    with Checkpointer.for_run(trainer.config.checkpoint, directory) as checkpointer:
        newest = checkpointer.latest()
        if newest is None:
            return trainer.first_state(), 0
        restored = checkpointer.restore(trainer.compiler.abstract_state(), at_or_before=newest)
    rollbacks = Rollbacks(directory, budget=0, window_steps=1)
    data = rollbacks.data_after(restored.step)
    batches.set_state(restored.extra["data"] if data is None else data)
    return restored.state, restored.step
