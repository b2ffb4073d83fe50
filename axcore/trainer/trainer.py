"""`Trainer`: puts model, learner, data, checkpoints and metrics together, and compiles the step."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from axcore.checkpoint import Checkpointer
from axcore.config import REQUIRED, Configurable, config, render_config
from axcore.data import Data
from axcore.learner import Learner
from axcore.module import Module
from axcore.ops import KernelPlan, KernelPolicy, PlanRecording, recording_plan, use_policy
from axcore.parallel import (
    ACTIVATION_RULES,
    PARAM_RULES,
    ActivationSharding,
    SplitAttention,
    is_first,
    make_mesh,
    param_shardings,
    partition_spec,
    sharding_activations,
    shardings_like,
)
from axcore.plugins import Hardware, MeshRule, plugin_host, wanted_compiler_options
from axcore.trainer.agreement import check_processes_agree
from axcore.trainer.axis_checks import check_mesh_is_used, check_rules
from axcore.trainer.checks import (
    check_batch_divides,
    check_kernel_names,
    check_numbers,
    check_vocabulary,
    check_watchers,
)
from axcore.trainer.claim import claimed
from axcore.trainer.events import Observer, Observers
from axcore.trainer.hardware import for_hardware
from axcore.trainer.metrics import LossMeter
from axcore.trainer.observers import named_observers
from axcore.trainer.run import Run, TrainResult
from axcore.trainer.schemes import check_schemes
from axcore.trainer.shares import BatchShare, batch_share
from axcore.trainer.step import TrainState, TrainStep
from axcore.trainer.writers import ALWAYS

MAY_CHANGE = (
    "max_steps",
    "*_every_steps",
    "max_skipped_steps",
    "checkpoint.*",
    "prompt",
    "*num_micro_batches",
    "mesh*",
    "param_rules*",
    "activation_rules*",
    "slices*",
    "split_attention",
    "*.remat*",
    "kernels*",
    "allow_kernels*",
    "writers*",
    "observers*",
)
"""Paths that may differ when a run is taken up again: how long, how often, and on which machine."""

BATCH_DTYPES = {
    "tokens": "int32",
    "targets": "int32",
    "segment_ids": "int32",
    "positions": "int32",
    "loss_weights": "float32",
}
"""The arrays of a batch, all `[batch, time]`, as `axcore.data` makes them."""


class Trainer(Configurable):
    """Trains a model on data until `max_steps`, from wherever the run directory left off."""

    @config
    class Config(Configurable.Config):
        """Describes a training run, whole.

        Args:
            model: The model, called with a batch, adding its losses.
            data: Batches to train on and to evaluate on.
            learner: Optimizer and schedule.
            max_steps: Steps of the run.
            seed: Decides initial values and dropout.
            num_micro_batches: Parts that a batch is split into, one after the other in memory; the
                result is that of the whole batch.
            mesh: Devices of a slice by mesh axis; None takes the mesh rule that matches the
                hardware.
            slices: Slices by mesh axis, where there are several; one slice where empty.
            mesh_rules: Rules of the experiment's own, before those of plugins.
            param_rules: Mesh axes by logical axis, for parameters.
            activation_rules: Mesh axes by logical axis, for activations.
            split_attention: How attention reaches keys on other devices where the rules split time:
                it gathers them, passes them round a ring, or deals heads out for a while.
            log_every_steps: Steps between lines of metrics.
            eval_every_steps: Steps between evaluations; the last step is always evaluated.
            max_skipped_steps: How many steps may have a loss or gradient that is not finite, and so
                change nothing; one more stops the run.
            checkpoint: When and how checkpoints are saved.
            prompt: What the sample at the end of the run goes on from.
            kernels: Kernel by op, to choose by name: that one or an error.
            allow_kernels: Portable kernels that may serve where those for the hardware cannot.
            writers: Metric writers by name; `json_lines` writes even where it is left out.
            observers: What watches the run, by name; see `axcore.plugins.RunObserver`.
        """

        model: Module.Config = REQUIRED
        data: Data.Config = REQUIRED
        learner: Learner.Config = Learner.Config()
        max_steps: int = REQUIRED
        seed: int = 0
        num_micro_batches: int = 1
        mesh: Mapping[str, int] | None = None
        slices: Mapping[str, int] = {}
        mesh_rules: tuple[MeshRule, ...] = ()
        param_rules: Mapping[str, tuple[str, ...]] = PARAM_RULES
        activation_rules: Mapping[str, tuple[str, ...]] = ACTIVATION_RULES
        split_attention: SplitAttention = "gather"
        log_every_steps: int = 10
        eval_every_steps: int = 100
        max_skipped_steps: int = 100
        checkpoint: Checkpointer.Config = Checkpointer.Config(every_steps=100)
        prompt: str = ""
        kernels: Mapping[str, str] = {}
        allow_kernels: tuple[str, ...] = ()
        writers: tuple[str, ...] = (ALWAYS,)
        observers: tuple[str, ...] = ()

    def __init__(
        self,
        cfg: Config,
        *,
        devices: Sequence[Any] | None = None,
        hardware: Hardware | None = None,
    ) -> None:
        """Builds the parts for the hardware at hand; reads no data and starts no run.

        Args:
            cfg: What to train. Where it sets no mesh, the mesh rule of the hardware is applied;
                `self.config` is the result.
            devices: The devices to train on, all of jax's by default.
            hardware: What the devices are; detected where it is left out.

        Raises:
            PluginError: No mesh rule matches the hardware.
            ConfigError: Numbers of the config do not go together, or a name is unknown.
            ShardingError: The mesh does not fit the devices, the batch or the parameters, or one
                of its axes splits nothing.
        """
        self.hardware = Hardware.detect(devices) if hardware is None else hardware
        cfg, self.hardware_changes = for_hardware(cfg, self.hardware)
        super().__init__(cfg)
        check_numbers(cfg)
        check_kernel_names(cfg)
        check_schemes(cfg, self.hardware)
        check_watchers(cfg)
        self.model: Module = cfg.model.build()
        self.learner: Learner = cfg.learner.build(total_steps=cfg.max_steps)
        self.data: Data = cfg.data.build()
        assert cfg.mesh is not None, "a mesh rule gives one"
        self.mesh = make_mesh(cfg.mesh, devices, slices=cfg.slices)
        self.step = TrainStep(
            self.model, self.learner, seed=cfg.seed, num_micro_batches=cfg.num_micro_batches
        )
        self._programs: dict[str, Any] = {}
        self._plans: dict[str, PlanRecording] = {}
        check_vocabulary(cfg.model, self.data.tokenizer)
        check_rules(cfg, self.step.specs)
        check_batch_divides(cfg, self.mesh)
        check_mesh_is_used(cfg, self.mesh, self.step.specs)

    # -- What is compiled --------------------------------------------------------------------

    def shardings(self) -> TrainState:
        """Returns the sharding of every array of the state.

        Raises:
            ShardingError: A parameter does not divide over the mesh.
        """
        cfg = self.config
        abstract = jax.eval_shape(self.step.init)
        model = param_shardings(self.step.specs, cfg.param_rules, self.mesh)
        opt_state = shardings_like(abstract.opt_state, abstract.model, model, self.mesh)
        fields: Any = (self._replicated, model, opt_state, self._replicated)
        return TrainState(*fields)

    def abstract_state(self) -> TrainState:
        """Returns shapes, dtypes and shardings of the state, without making it."""
        state: TrainState = jax.tree.map(
            _abstract, jax.eval_shape(self.step.init), self.shardings()
        )
        return state

    def abstract_batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns shapes, dtypes and shardings of a batch, without reading the data."""
        shape = self._batch_shape
        return {
            name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype), sharding=self._batch_sharding)  # type: ignore[no-untyped-call]
            for name, dtype in BATCH_DTYPES.items()
        }

    def compiled_init(self) -> Any:
        """Returns the jitted function that makes the first state, sharded from the start."""
        return self._jitted("init", self.step.init, out_shardings=self.shardings())

    def compiled_step(self) -> Any:
        """Returns the jitted step `(state, batch) -> (state, metrics)`, which donates `state`."""
        shardings = (self.shardings(), self._replicated)
        return self._jitted("step", self.step, donate_argnums=0, out_shardings=shardings)

    def compiled_evaluation(self) -> Any:
        """Returns the jitted evaluation `(model_state, batch) -> losses`."""
        return self._jitted("evaluation", self.step.evaluate, out_shardings=self._replicated)

    def lowered_step(self) -> Any:
        """Returns the step traced for the state and the batch that it runs on, not yet compiled."""
        return self._lowered_step

    def step_program(self) -> Any:
        """Returns the step compiled for the state and the batch that it runs on."""
        return self._step_program

    def kernel_plan(self) -> KernelPlan:
        """Returns the kernels that the step uses, and why; traces it if it was not yet.

        Raises:
            KernelError: A pin cannot be followed, or no kernel may serve a call.
        """
        self._lowered_step  # noqa: B018 - ops choose while they are traced
        return self._plans["step"].plan()

    @property
    def kernel_policy(self) -> KernelPolicy:
        """What decides between kernels: the hardware, and what the config pins and allows."""
        cfg = self.config
        return KernelPolicy(hardware=self.hardware, pins=cfg.kernels, allow=cfg.allow_kernels)

    def _jitted(self, name: str, fn: Any, **options: Any) -> Any:
        """Returns a jitted function, traced once under the trainer's mesh, rules and policy."""
        if name not in self._programs:
            cfg = self.config
            activations = ActivationSharding(self.mesh, cfg.activation_rules, cfg.split_attention)

            def in_context(*args: Any) -> Any:
                with (
                    sharding_activations(activations),
                    use_policy(self.kernel_policy),
                    recording_plan() as self._plans[name],
                ):
                    return fn(*args)

            self._programs[name] = jax.jit(in_context, **options)
        return self._programs[name]

    @cached_property
    def _lowered_step(self) -> Any:
        with jax.set_mesh(self.mesh):
            return self.compiled_step().lower(self.abstract_state(), self.abstract_batch())

    @cached_property
    def _step_program(self) -> Any:
        options = dict(wanted_compiler_options(self.hardware))
        return self._lowered_step.compile(compiler_options=options or None)

    @cached_property
    def _batch_sharding(self) -> NamedSharding:
        axes = ("batch", "time")
        spec = partition_spec(axes, self.config.activation_rules, self.mesh, where="batch")
        return NamedSharding(self.mesh, spec)

    @cached_property
    def _replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())  # type: ignore[no-untyped-call]

    @cached_property
    def batch_share(self) -> BatchShare:
        """Which rows of each batch this process reads."""
        return batch_share(self._batch_sharding, self._batch_shape)

    @property
    def _batch_shape(self) -> tuple[int, int]:
        return (self.config.data.batch_size, self.config.data.seq_len)

    def put(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Returns a process's part of a batch as global arrays, sharded over the mesh."""
        put: Any = jax.make_array_from_process_local_data
        sharding, shape = self._batch_sharding, self._batch_shape
        return {name: put(sharding, array, shape) for name, array in batch.items()}

    # -- Running -----------------------------------------------------------------------------

    def run(self, directory: Path | str, observers: Iterable[Observer] = ()) -> TrainResult:
        """Trains until `max_steps`, and returns the last state.

        The directory is claimed for this config. Where it holds a checkpoint the run goes on from
        there, bit by bit as if it had never stopped. Ctrl-C or SIGTERM ends the run after the
        present step with a checkpoint; a second one ends it at once. What is wrong with plugins,
        data, shardings or kernels shows before anything is written.

        Args:
            directory: The run directory; made where it is absent.
            observers: Told of every event, beside those that the config names. In a run of several
                processes each tells its own, and process 0 those of the config.

        Raises:
            PluginError: A plugin is broken, or processes of the run are not made alike.
            ProcessError: A process of the run was lost, or did not come in time.
            DataError: The data cannot be read.
            ShardingError: A parameter does not divide over the mesh.
            KernelError: A pin cannot be followed, or no kernel may serve a call.
            CheckpointError: The directory is another config's or in use, or a checkpoint does not
                fit.
            TrainingError: Too many steps had a loss or gradient that is not finite, or a metric
                writer failed.
        """
        plugin_host().require_healthy()
        self.data.summary()
        check_processes_agree(self.kernel_plan(), render_config(self.config))
        with claimed(directory, self.config, MAY_CHANGE) as path, jax.set_mesh(self.mesh):
            named = named_observers(self.config.observers) if is_first() else ()
            return Run(self, path, Observers((*observers, *named))).run()

    def evaluate(self, model_state: Any) -> dict[str, float]:
        """Returns the metrics of a model's state on the held-out text; empty if there is none."""
        evaluation = self.compiled_evaluation()
        with jax.set_mesh(self.mesh):
            share = self.batch_share
            batches = self.data.heldout(process_index=share.index, process_count=share.count)
            losses = [evaluation(model_state, self.put(batch)) for batch in batches]
        meter = LossMeter()
        for one in jax.device_get(losses):
            meter.add(one)
        return meter.metrics() if losses else {}

    def describe_mesh(self) -> str:
        """Returns the mesh as people read it: `data 2 x fsdp 4`, or `1 device`."""
        sizes = {name: size for name, size in self.mesh.shape.items() if size > 1}
        return " x ".join(f"{name} {size}" for name, size in sizes.items()) or "1 device"


def _abstract(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]
