"""`Trainer`: puts model, learner, data, checkpoints and metrics together, and runs the loop."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import jax
from jax.sharding import Mesh

from axcore.checkpoint import Checkpointer, MemorySnapshots
from axcore.config import (
    REQUIRED,
    Configurable,
    NonNegativeInt,
    PositiveInt,
    Resumable,
    config,
    render_config,
)
from axcore.config.build import owner_of
from axcore.data import DataLoader, Policy, PrefetchedBatches, TrainBatches
from axcore.distributed import broadcast_object, is_process_zero
from axcore.errors import ShardingError
from axcore.interop import WeightPlan, WeightSource
from axcore.learner import Learner
from axcore.module import Module
from axcore.ops import KernelPlan, KernelPreference
from axcore.parallel import ACTIVATION_RULES, PARAM_RULES, ContextParallelism, make_mesh
from axcore.plugins import Hardware, MeshRule, attributed, plugin_host, wrong_method_return
from axcore.trainer.callbacks.events import Observer, Observers, named_observers
from axcore.trainer.callbacks.metrics import LossMeter
from axcore.trainer.callbacks.writers import DEFAULT_WRITER
from axcore.trainer.checks import (
    check_gradient_norms,
    check_kernel_names,
    check_libraries,
    check_mesh_is_used,
    check_micro_batches,
    check_quantization_schemes,
    check_sharding_rules,
    check_writers_and_observers,
)
from axcore.trainer.compile import KeptSteps, StepCompiler
from axcore.trainer.guards import Guard, Guards
from axcore.trainer.loop import TrainLoop, TrainResult
from axcore.trainer.measured_rows import MeasuredRows
from axcore.trainer.resolve import ResolvedConfig, check_is_resolved, resolve
from axcore.trainer.run_directory.directory import locked_run_directory
from axcore.trainer.run_directory.identity import check_processes_agree
from axcore.trainer.run_directory.saved_steps import check_max_steps
from axcore.trainer.shardings import BatchSharding, gradient_split
from axcore.trainer.step import TrainState, TrainStep, task_of


@config
class ShardingConfig:
    """How arrays are split over the mesh.

    Args:
        param_rules: Mesh axes by logical axis, for parameters.
        optimizer_rules: Mesh axes by logical axis, for gradients and the optimizer's state; those
            for parameters where None.
        activation_rules: Mesh axes by logical axis, for activations.
        context_parallelism: How attention reaches keys on other devices where time is split: it
            gathers them, passes them round a ring, or deals heads out for a while.
    """

    param_rules: Mapping[str, tuple[str, ...]] = PARAM_RULES
    optimizer_rules: Mapping[str, tuple[str, ...]] | None = None
    activation_rules: Mapping[str, tuple[str, ...]] = ACTIVATION_RULES
    context_parallelism: ContextParallelism = "all_gather"


@config
class LoggingConfig:
    """When metrics are logged, and where they go.

    Args:
        every_steps: Steps between lines of metrics.
        gradient_norms_every_steps: Steps between lines with the norms of gradients by module, a
            multiple of `every_steps`; with 0 they are not measured.
        writers: Metric writers by name; `json_lines` writes even where it is left out.
        observers: What watches the run, by name; see `axcore.plugins.RunObserver`.
    """

    every_steps: PositiveInt = 10
    gradient_norms_every_steps: NonNegativeInt = 0
    writers: tuple[str, ...] = (DEFAULT_WRITER,)
    observers: tuple[str, ...] = ()


@config
class RollbackConfig:
    """How many steps may be skipped, and how often the run may go back to a checkpoint.

    Args:
        max_skipped_steps: How many steps of the window may have a loss, gradient or update that is
            not finite, and so change nothing; one more stops the run.
        max_skipped_in_a_row: How many of them may follow each other; one more rolls back.
        max_rollbacks: How often the run may go back to a checkpoint in the window.
        window_steps: The newest steps, which the other numbers are counted over.
    """

    max_skipped_steps: int = 100
    max_skipped_in_a_row: PositiveInt = 20
    max_rollbacks: int = 3
    window_steps: PositiveInt = 1000


@config
class KernelsConfig:
    """Which kernels serve.

    Args:
        pins: Kernel by op, to choose by name: that one or an error.
        allow: Portable kernels that may serve where those for the hardware cannot.
        choice: Which kernel serves where several can: one that has run on the chip and was timed
            there, if there is any; or the fastest as far as is known, never run or not.
    """

    pins: Mapping[str, str] = {}
    allow: tuple[str, ...] = ()
    choice: KernelPreference = "validated"


class Trainer(Configurable):
    """Trains a model on data until `max_steps`, from wherever the run directory left off."""

    @config
    class Config(Configurable.Config["Trainer"]):
        """Describes a complete training run.

        What is `Resumable` may change when the run is resumed: how long it is, how often it
        reports, and what it runs on.

        Args:
            model: The model.
            task: What adds losses from a batch, around the model; where None the model does itself.
            data: Batches to train on and to evaluate on.
            learner: Optimizer and schedule.
            max_steps: Steps of the run.
            seed: Decides initial values and dropout.
            init_from: Weights to begin with; random where None. A run that resumes reads none.
            num_micro_batches: Parts that a batch is split into, one after the other in memory; the
                result is that of the full batch.
            mesh: Devices of a slice by mesh axis; None takes the mesh rule that matches the
                hardware.
            slices: Slices by mesh axis, where there are several; one slice where empty.
            mesh_rules: Rules of the experiment's own, before those of plugins.
            sharding: How parameters, gradients, activations and keys are split over the mesh.
            logging: When metrics are logged, and where they go.
            eval_every_steps: Steps between evaluations; the last step is always evaluated.
            prefetch_batches: The most batches that a thread prepares ahead of the step; with 0
                each is prepared when the step wants it.
            rollback: How many steps may be skipped, and how often the run may go back.
            preemption_notice: A file that appears when this machine is to be taken away; the run
                then stops with a checkpoint, as at SIGTERM. Empty for none.
            guards: What may change a batch or the state between steps, roll back or stop the run.
            checkpoint: When and how checkpoints are saved.
            snapshots: When states are kept in host memory, for restarts without storage.
            prompt: The text that the sample at the end of the run continues.
            kernels: Which kernels serve.
        """

        model: Module.Config = REQUIRED
        task: Module.Config | None = None
        data: DataLoader.Config = REQUIRED
        learner: Learner.Config = Learner.Config()
        max_steps: Resumable[PositiveInt] = REQUIRED
        seed: int = 0
        init_from: WeightSource.Config | None = None
        num_micro_batches: Resumable[PositiveInt] = 1
        mesh: Resumable[Mapping[str, int] | None] = None
        slices: Resumable[Mapping[str, int]] = {}
        mesh_rules: Resumable[tuple[MeshRule, ...]] = ()
        sharding: Resumable[ShardingConfig] = ShardingConfig()
        logging: Resumable[LoggingConfig] = LoggingConfig()
        eval_every_steps: Resumable[PositiveInt] = 100
        prefetch_batches: Resumable[NonNegativeInt] = 2
        rollback: Resumable[RollbackConfig] = RollbackConfig()
        preemption_notice: Resumable[str] = ""
        guards: Resumable[tuple[Guard.Config, ...]] = ()
        checkpoint: Resumable[Checkpointer.Config] = Checkpointer.Config(every_steps=100)
        snapshots: Resumable[MemorySnapshots.Config] = MemorySnapshots.Config()
        prompt: Resumable[str] = ""
        kernels: Resumable[KernelsConfig] = KernelsConfig()

        def _make(self) -> Any:
            """Make the trainer for the hardware at hand."""
            return owner_of(type(self))(resolve(self, Hardware.detect()))

    moved_fields: ClassVar[Mapping[str, str]] = {
        "param_rules": "sharding.param_rules",
        "optimizer_rules": "sharding.optimizer_rules",
        "activation_rules": "sharding.activation_rules",
        "context_parallelism": "sharding.context_parallelism",
        "log_every_steps": "logging.every_steps",
        "gradient_norms_every_steps": "logging.gradient_norms_every_steps",
        "writers": "logging.writers",
        "observers": "logging.observers",
        "max_skipped_steps": "rollback.max_skipped_steps",
        "max_skipped_in_a_row": "rollback.max_skipped_in_a_row",
        "max_rollbacks": "rollback.max_rollbacks",
        "budget_window_steps": "rollback.window_steps",
        "allow_kernels": "kernels.allow",
        "kernel_choice": "kernels.choice",
    }
    """Where fields of configs are now that earlier runs have at the root."""

    def __init__(
        self,
        resolved: ResolvedConfig,
        *,
        devices: Sequence[Any] | None = None,
        kept_steps: KeptSteps | None = None,
    ) -> None:
        """Build the parts; reads no data and starts no run.

        Args:
            resolved: What to train, and on which hardware; `resolve` makes it.
            devices: The devices to train on, all of jax's by default.
            kept_steps: Where a compiled step is looked for, and kept; it is compiled by default.

        Raises:
            ConfigError: Numbers of the config are incompatible, or a name is unknown.
            ShardingError: The mesh does not fit the devices, the batch or the parameters, or one
                of its axes splits nothing.
        """
        check_is_resolved(resolved)
        cfg = resolved.config
        super().__init__(cfg)
        self.resolved = resolved
        self.hardware = resolved.hardware
        # Names first: they cost nothing, and are what is wrong most often.
        check_kernel_names(cfg)
        check_quantization_schemes(cfg, self.hardware)
        check_writers_and_observers(cfg)
        check_gradient_norms(cfg)
        self.task = task_of(cfg)
        self.model: Module = self.task if cfg.task is None else self.task.model
        self.learner: Learner = cfg.learner.build(total_steps=cfg.max_steps)
        self.data: DataLoader = cfg.data.build()
        try:
            # Before the step, whose gradients are split over it.
            self.mesh = make_mesh(cfg.mesh, devices, slices=cfg.slices)
        except ShardingError as error:
            error.set_in = resolved.origin_of("mesh", "slices")
            raise
        with attributed(self.data, "on_task"):
            self.data.on_task(self.task)
        self.batch_spec = self.data.batch_spec()
        self.step = self._step_on(self.mesh)
        self._check_task()
        check_micro_batches(cfg, self.batch_spec)
        check_sharding_rules(cfg, self.step.specs, self.batch_spec)
        self.batch_sharding = BatchSharding(
            self.batch_spec, cfg.sharding.activation_rules, self.mesh
        )
        # Last of the checks, since it needs the shardings of all arrays.
        check_mesh_is_used(cfg, self.batch_sharding, self.step.specs)
        self.compiler = StepCompiler(
            resolved, self.step, self.mesh, self.batch_sharding, kept_steps=kept_steps
        )

    def _step_on(self, mesh: Mesh) -> TrainStep:
        return TrainStep(
            self.task,
            self.learner,
            seed=self.config.seed,
            num_micro_batches=self.config.num_micro_batches,
            loss_groups=self.batch_spec.loss_groups,
            norms_every_steps=self.config.logging.gradient_norms_every_steps,
            split_gradients=gradient_split(self.config, mesh),
        )

    def compiler_on(self, mesh: Mesh) -> StepCompiler:
        """Return the programs of this run on another mesh of the same shape."""
        rules = self.config.sharding.activation_rules
        batch = BatchSharding(self.batch_spec, rules, mesh)
        return StepCompiler(self.resolved, self._step_on(mesh), mesh, batch)

    def kernel_plan(self) -> KernelPlan:
        """Return the kernels that the step uses, and why.

        Raises:
            KernelError: A pin cannot be followed, or no kernel may serve a call.
        """
        return self.compiler.kernel_plan()

    def run(
        self,
        directory: Path | str,
        observers: Iterable[Observer] = (),
        *,
        quiet: bool = False,
        from_step: int | None = None,
        launch: str = "",
        returns_when_stopped: bool = False,
    ) -> TrainResult:
        """Train until `max_steps`, and return the last state.

        The directory is locked for this config. Where it contains a checkpoint the run resumes from
        there, bit by bit as if it had never stopped. Ctrl-C, SIGTERM or a preemption notice ends
        the run after the present step with a checkpoint, and is then raised, so that what follows
        in a script does not run; a second signal ends the run at once. What is wrong with plugins,
        data, shardings or kernels shows before anything is written.

        Args:
            directory: The run directory; made where it is absent.
            observers: Get every event, in addition to those that the config names. In a run of
                several processes each serves its own, and process 0 those of the config.
            quiet: Whether no progress is shown; otherwise process 0 shows it on stderr.
            from_step: The checkpoint to resume from, 0 for the start; later ones are
                quarantined. By default the newest.
            launch: Which launch this start is of. Of all starts of one, only the first goes back to
                `from_step`; the others resume from the newest checkpoint.
            returns_when_stopped: Whether a request to stop makes this return, with a result that
                is not complete and whose `validation` may be empty, rather than raise.

        Raises:
            KeyboardInterrupt: Ctrl-C asked to stop, and the run is saved.
            SystemExit: SIGTERM, SIGHUP or a preemption notice did; its code is 143.
            ConfigError: The run has made more than `max_steps`, or a writer or observer needs a
                library that is not installed.
            PluginError: A plugin is broken, or processes of the run are not made alike.
            ProcessError: A process of the run was lost, or did not come in time.
            DataError: The data cannot be read.
            ShardingError: A parameter does not divide over the mesh.
            KernelError: A pin cannot be followed, or no kernel may serve a call.
            CheckpointError: The directory is another config's or in use, or a checkpoint does not
                fit.
            TrainingError: Too many steps had a loss, gradient or update that is not finite, the run
                went back too often, or a metric writer failed.
        """
        # In this order so that what fails fastest fails first,
        # and nothing is written before all of it holds.
        plugin_host().require_healthy()
        check_libraries(self.config)
        run, max_steps = Path(directory), self.config.max_steps
        # By process 0, for all: the others may not see the directory.
        broadcast_object("max_steps", lambda: check_max_steps(run, max_steps, from_step))
        if self.config.init_from is not None:
            # Built for its checks alone; weights are read when the first state is made.
            self.config.init_from.build()
        guards = Guards(self.config.guards)
        guards.check(self)
        # Reads the data once, so that a file that is missing shows before a directory is made.
        self.data.summary()
        batches = self.train_batches()
        checkpoints = Checkpointer.for_run(self.config.checkpoint, run)
        # Before the lock: processes that differ would wait for each other in the first collective.
        check_processes_agree(self.kernel_plan(), render_config(self.config), batches.identity)
        with (
            locked_run_directory(
                run, self.config, batches.identity, is_shared=checkpoints.is_shared
            ) as locked,
            jax.set_mesh(self.mesh),
            ExitStack() as ending,
        ):
            ending.callback(self.data.on_run_end)
            self.data.on_run(locked.path)
            # One process only: an observer that posts to a board would do so once for each process.
            named = named_observers(self.config.logging.observers) if is_process_zero() else ()
            shown = () if quiet or not is_process_zero() else (_progress_on_stderr(),)
            ahead = PrefetchedBatches(batches, ahead=self.config.prefetch_batches)
            loop = TrainLoop(self, ahead, locked, Observers((*shown, *observers, *named)), guards)
            return loop.run(
                from_step=from_step, launch=launch, returns_when_stopped=returns_when_stopped
            )

    def _check_task(self) -> None:
        """Check what a task, or a model, says about itself; somebody else may have written it."""
        with attributed(self.task, "check_batch"):
            self.task.check_batch(self.batch_spec.for_model())
        with attributed(self.data, "check_task"):
            self.data.check_task(self.task)
        with attributed(self.task, "metric_units"):
            units: object = self.task.metric_units()
        if not isinstance(units, Mapping):
            expected = "a mapping from names of metrics to their units"
            raise wrong_method_return(self.task, "metric_units", units, expected)

    def first_state(self) -> TrainState:
        """Return the state before the first step: random, or from the weights of `init_from`.

        What the task adds to the state, such as a teacher, is read from its own source.

        Raises:
            ConfigError: Those weights are another model's.
            CheckpointError: They cannot be read.
        """
        cfg, abstract = self.config, self.compiler.abstract_state().model
        state: TrainState
        if cfg.init_from is None:
            # Made on the devices, already sharded: a full state would fit on none of them.
            state = self.compiler.jitted_init()
        else:
            weights = self.initial_weights.read(self.step.own_part(abstract), seed=cfg.seed)
            state = self.compiler.jitted_first_state(weights)
        for name, read in self.task.kept_sources().items():
            del state.model[name]  # random arrays: gone from the devices before others come
            state.model[name] = read(abstract[name])
        return state

    @cached_property
    def initial_weights(self) -> WeightPlan:
        """What the first state's weights are read from, where the config names a source."""
        source: Any = self.config.init_from
        plan: WeightPlan = source.build().plan(self.config.model)
        return plan

    def train_batches(self) -> TrainBatches:
        """Return this process's part of the training batches, from the first one on."""
        shard = self.batch_sharding.shard
        return self.data.train(process_index=shard.index, process_count=shard.count)

    def evaluate(self, model_state: Any) -> dict[str, float]:
        """Return the metrics of a model's state on the validation data; empty if there is none."""
        evaluation = self.compiler.jitted_evaluation
        put, shard = self.batch_sharding.device_put, self.batch_sharding.shard
        state, kept = self.step.own_part(model_state), self.step.kept_part(model_state)
        policy = Policy(
            self.model,
            state=state,
            kept=kept,
            jit=self.compiler.jitted_policy,
            kernels=self.compiler.kernel_policy,
        )
        self.data.on_policy(policy)
        batches = self.data.validation(process_index=shard.index, process_count=shard.count)
        with jax.set_mesh(self.mesh):
            # All batches are dispatched before any loss is
            # fetched, so that the devices never wait for the host.
            losses, rows = [], MeasuredRows(self.task.row_measure())
            for batch in batches:
                of_batch, of_rows = evaluation(model_state, put(batch))
                losses.append(of_batch)
                rows.add(of_rows)
        # Whoever keeps the handle shall not keep these weights.
        policy.state, policy.kept = None, {}
        meter = LossMeter()
        for one in jax.device_get(losses):
            meter.add(one)
        return {**meter.metrics(), **rows.measures()} if losses else {}

    def describe_mesh(self) -> str:
        """Return the mesh as people read it: `data 2 x fsdp 4`, or `1 device`."""
        sizes = {name: size for name, size in self.mesh.shape.items() if size > 1}
        return " x ".join(f"{name} {size}" for name, size in sizes.items()) or "1 device"


def _progress_on_stderr() -> Observer:
    from rich.console import Console  # costs what importing a config need not pay

    from axcore.trainer.callbacks.progress import progress

    return progress(Console(stderr=True))
