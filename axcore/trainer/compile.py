"""`StepCompiler`: the programs of a run, jitted, lowered and compiled for its mesh and hardware.

`KeptSteps` keeps compiled steps on disk for the later attempts of a launch, which then neither
trace nor compile. What is found was made from an equal config, mesh and place, and from files of
Python that have not changed since.
"""

import hashlib
import os
import pickle
import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from axcore._jax_compat import dump_program, load_program, recording_cached_programs
from axcore.config import render_config
from axcore.distributed import decide_together
from axcore.ops import KernelPlan, KernelPolicy, PlanRecording, recording_plan, use_policy
from axcore.parallel import ActivationSharding, sharding_activations
from axcore.plugins import wanted_compiler_options
from axcore.trainer.resolve import ResolvedConfig
from axcore.trainer.shardings import BatchSharding, optimizer_shardings, state_shardings
from axcore.trainer.step import TrainState, TrainStep
from axcore.whole_files import write_whole


class KeptStep(NamedTuple):
    """A compiled step, and the kernels that were chosen while it was traced."""

    compiled: Any
    plan: KernelPlan


class KeptSteps:
    """A folder of compiled steps, a file each."""

    def __init__(self, folder: Path) -> None:
        """Read nothing yet.

        Args:
            folder: That of a launch. Nobody else may write it: what is there is unpickled.
        """
        self._folder = folder

    def find(self, description: str, devices: Sequence[Any]) -> KeptStep | None:
        """Return the step that was kept under a description; warns where it cannot be loaded."""
        path = self._path(description)
        if not path.exists():
            return None
        try:
            kept = pickle.loads(path.read_bytes())
            # By time and size of every file that was loaded: what the trace read
            # cannot be known in more detail, and hashing all files takes longer.
            if kept["files"] != versions_of(kept["files"]):
                return None
            return KeptStep(load_program(kept["program"], devices), kept["plan"])
        # A step that cannot be loaded costs a compilation and
        # nothing else; unpickling raises whatever it likes.
        except Exception as error:  # whatever pickle and the devices may raise
            warnings.warn(f"the kept step is made again: {error!r}", stacklevel=2)
            return None

    def compile(self, description: str, lowered: Any, plan: KernelPlan, options: Any) -> Any:
        """Compile a step and keep it, unless it calls back into this process; returns it.

        A step that cannot be kept costs a warning.

        Args:
            description: What `find` will look for.
            lowered: The step traced and lowered.
            plan: The kernels that were chosen meanwhile.
            options: Those of the compiler.
        """
        # jax may read the program from its own cache while compiling; such
        # a program cannot be dumped again on CPU (see `dump_program`).
        with recording_cached_programs() as cached:
            compiled = lowered.compile(compiler_options=options)
        # After compiling, and apart from it: an error of the
        # compiler is the user's, one of keeping is only a warning.
        try:
            program = dump_program(compiled, cached)
            if program is not None:
                self._write(self._path(description), program, plan)
        except Exception as error:  # whatever pickle, the disk and the devices may raise
            warnings.warn(f"the compiled step is not kept: {error!r}", stacklevel=2)
        return compiled

    def _write(self, path: Path, program: bytes, plan: KernelPlan) -> None:
        # After the trace, so that all modules that it used are loaded.
        kept = {"files": versions_of(files_of_modules()), "plan": plan, "program": program}
        write_whole(path, pickle.dumps(kept))

    def _path(self, description: str) -> Path:
        return self._folder / hashlib.sha256(description.encode()).hexdigest()


# A copy of the values, for another thread may import meanwhile.
def files_of_modules() -> set[str]:
    """Return the files of all modules that are loaded."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {file for file in files if file}


def versions_of(files: Iterable[str]) -> dict[str, tuple[int, int] | None]:
    """Return the versions of files, by which something made of them can be found out of date."""
    return {file: _version(file) for file in files}


def _version(file: str) -> tuple[int, int] | None:
    try:
        state = os.stat(file)
    except OSError:
        return None  # in an archive, or gone
    return state.st_mtime_ns, state.st_size


class StepCompiler:
    """Makes the programs of one train step: the first state, the step itself and its evaluation.

    `jitted_*` are functions under `jax.jit`, `lowered_step` is the step traced for the shapes and
    shardings of a run, `compiled_step` that compiled. Each is made when it is first asked for.
    """

    def __init__(
        self,
        resolved: ResolvedConfig,
        step: TrainStep,
        mesh: Mesh,
        batch: BatchSharding,
        *,
        kept_steps: KeptSteps | None = None,
    ) -> None:
        self.config = resolved.config
        self.hardware = resolved.hardware
        self.step = step
        self.mesh = mesh
        self.batch = batch
        self._kept_steps = kept_steps
        self._plans: dict[str, PlanRecording] = {}

    def shardings(self) -> TrainState:
        """Return the sharding of every array of the state.

        Raises:
            ShardingError: A parameter does not divide over the mesh.
        """
        return state_shardings(self.config, self.step.specs, self._shapes, self.mesh)

    def abstract_state(self) -> TrainState:
        """Return shapes, dtypes and shardings of the state, without making it."""
        state: TrainState = jax.tree.map(
            lambda leaf, sharding: leaf.update(sharding=sharding),
            self._shapes,
            self.shardings(),
        )
        return state

    @cached_property
    def jitted_init(self) -> Any:
        """The jitted function that makes the first state, sharded from the start."""
        return self._jitted("init", self.step.init, out_shardings=self.shardings())

    @cached_property
    def jitted_first_state(self) -> Any:
        """The jitted function from a model's state, which it donates, to the first state."""
        shardings = self.shardings()
        return self._jitted(
            "first state", self.step.first_state, donate_argnums=0, out_shardings=shardings
        )

    @cached_property
    def jitted_step(self) -> Any:
        """The jitted step `(state, batch) -> (state, metrics)`, which donates `state`."""
        shardings = (self.shardings(), self._replicated)
        return self._jitted("step", self.step, donate_argnums=0, out_shardings=shardings)

    @cached_property
    def jitted_evaluation(self) -> Any:
        """The jitted evaluation `(model_state, batch) -> (losses, rows)`."""
        return self._jitted("evaluation", self.step.evaluate, out_shardings=self._replicated)

    @cached_property
    def jitted_gradients(self) -> Any:
        """The jitted `(model_state, batch, step) -> (gradients, loss)`, which donates nothing."""
        like = optimizer_shardings(self.config, self.step.specs, self.mesh)
        shardings = (self.step.trained_part(like), self._replicated)
        return self._jitted("gradients", self.step.gradients, out_shardings=shardings)

    def jitted_policy(self, fn: Any) -> Any:
        """Return a function of the model's arrays jitted, for batches that follow the weights."""
        return self._jitted("policy", fn)

    @cached_property
    def lowered_step(self) -> Any:
        """The step traced for the state and the batch that it runs on, not yet compiled."""
        # The mesh is set for sharding constraints by name, which ops use inside.
        with jax.set_mesh(self.mesh):
            return self.jitted_step.lower(self.abstract_state(), self.batch.abstract())

    @cached_property
    def compiled_step(self) -> Any:
        """The step compiled for the state and the batch that it runs on."""
        # Not even traced: the plan was kept with it.
        if self._kept_step is not None:
            return self._kept_step.compiled
        options = dict(wanted_compiler_options(self.hardware)) or None
        if self._kept_steps is None:
            return self.lowered_step.compile(compiler_options=options)
        return self._kept_steps.compile(
            self._description, self.lowered_step, self.kernel_plan(), options
        )

    @property
    def is_step_kept(self) -> bool:
        """Whether the step is one that an attempt before had compiled."""
        return self._kept_step is not None

    def kernel_plan(self) -> KernelPlan:
        """Return the kernels that the step uses, and why; lowers it if it was not yet.

        Raises:
            KernelError: A pin cannot be followed, or no kernel may serve a call.
        """
        if self._kept_step is not None:
            return self._kept_step.plan
        _ = self.lowered_step  # ops choose while they are traced
        return self._plans["step"].plan()

    @property
    def kernel_policy(self) -> KernelPolicy:
        """What decides between kernels: the hardware, and what the config wants."""
        return KernelPolicy.of(self.config, self.hardware)

    def _jitted(self, name: str, fn: Any, **options: Any) -> Any:
        """Return a function jitted, to be traced under the run's mesh, rules and policy."""
        # The step is traced by whoever asks first: `lower`, a test, or a call.
        cfg = self.config
        activations = ActivationSharding(
            self.mesh,
            cfg.sharding.activation_rules,
            cfg.sharding.context_parallelism,
            cfg.sharding.param_rules,
        )

        # Entered inside: whoever calls the function first, and wherever, has it traced.
        def in_context(*args: Any) -> Any:
            with (
                sharding_activations(activations),
                use_policy(self.kernel_policy),
                recording_plan() as self._plans[name],
            ):
                return fn(*args)

        return jax.jit(in_context, **options)

    @cached_property
    def _shapes(self) -> TrainState:
        return self.step.abstract_state()

    @cached_property
    def _kept_step(self) -> KeptStep | None:
        """What was kept; None unless every process has its own, since they compile together."""
        if self._kept_steps is None:
            return None
        found = self._kept_steps.find(self._description, list(self.mesh.devices.flat))
        # All or none: a process that compiles would wait
        # in XLA's own exchange for those that do not.
        all_have = decide_together("kept steps", lambda: found is not None, all)
        return found if all_have else None

    @property
    def _description(self) -> str:
        """What the step is compiled from, but for code and what a launch never changes."""
        # Numbers of processes too, as each one's program addresses its own devices.
        place = f"process {jax.process_index()} of {jax.process_count()}"
        parts = (render_config(self.config), self.hardware.name, place, self.mesh.devices.tolist())
        return "\n".join(map(str, parts))

    @cached_property
    def _replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())  # type: ignore[no-untyped-call]
