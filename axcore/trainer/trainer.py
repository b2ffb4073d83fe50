"""`Trainer`: a short loop that puts model, learner, data, checkpoints and metrics together."""

import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from axcore.checkpoint import Checkpointer
from axcore.checkpoint.run_directory import RunDirectory
from axcore.config import REQUIRED, Configurable, config, render_config, to_json
from axcore.data import Data
from axcore.errors import ConfigError, TrainingError
from axcore.learner import Learner
from axcore.module import Module, count_params
from axcore.parallel import (
    ACTIVATION_RULES,
    PARAM_RULES,
    ActivationSharding,
    make_mesh,
    param_shardings,
    partition_spec,
    sharding_activations,
    shardings_like,
)
from axcore.plugins import Hardware, MeshRule
from axcore.trainer.events import (
    CheckpointSaved,
    Evaluated,
    Observer,
    Observers,
    RunFinished,
    RunStarted,
    StepsDone,
)
from axcore.trainer.flops import FORMULA, flops_per_token
from axcore.trainer.metrics import LossMeter, MetricsFile, summary_metrics
from axcore.trainer.step import StepMetrics, TrainState, TrainStep

MAY_CHANGE = ("max_steps", "log_every_steps", "eval_every_steps", "checkpoint.*", "prompt")
"""Paths that may differ when a run is taken up again."""


@attrs.frozen
class TrainResult:
    """How a run ended.

    Args:
        step: Steps done.
        state: The last state, on the devices.
        heldout: Metrics of the last evaluation; empty where there was none.
        is_complete: Whether all steps are done; otherwise the run can be taken up again.
    """

    step: int
    state: TrainState
    heldout: Mapping[str, float]
    is_complete: bool


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
            mesh: Devices by mesh axis; None takes the mesh rule that matches the hardware.
            mesh_rules: Rules of the experiment's own, before those of plugins.
            param_rules: Mesh axes by logical axis, for parameters.
            activation_rules: Mesh axes by logical axis, for activations.
            log_every_steps: Steps between lines of metrics.
            eval_every_steps: Steps between evaluations; the last step is always evaluated.
            max_skipped_steps: Steps with a loss that is not finite, after which the run stops.
            checkpoint: When and how checkpoints are saved.
            prompt: What the sample at the end of the run goes on from.
        """

        model: Module.Config = REQUIRED
        data: Data.Config = REQUIRED
        learner: Learner.Config = Learner.Config()
        max_steps: int = REQUIRED
        seed: int = 0
        num_micro_batches: int = 1
        mesh: Mapping[str, int] | None = None
        mesh_rules: tuple[MeshRule, ...] = ()
        param_rules: Mapping[str, tuple[str, ...]] = PARAM_RULES
        activation_rules: Mapping[str, tuple[str, ...]] = ACTIVATION_RULES
        log_every_steps: int = 10
        eval_every_steps: int = 100
        max_skipped_steps: int = 100
        checkpoint: Checkpointer.Config = Checkpointer.Config(every_steps=100)
        prompt: str = ""

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        _check(cfg)
        self.model: Module = cfg.model.build()
        self.learner: Learner = cfg.learner.build(total_steps=cfg.max_steps)
        self.data: Data = cfg.data.build()
        self.mesh = make_mesh(cfg.mesh or {"fsdp": -1})
        self.step = TrainStep(
            self.model, self.learner, seed=cfg.seed, num_micro_batches=cfg.num_micro_batches
        )
        self._check_vocabulary()

    # -- What is compiled --------------------------------------------------------------------

    def shardings(self) -> TrainState:
        """Returns the sharding of every array of the state.

        Raises:
            ShardingError: A parameter does not divide over the mesh.
        """
        cfg = self.config
        abstract = jax.eval_shape(self.step.init)
        model = param_shardings(self.step.specs, cfg.param_rules, self.mesh)
        replicated = NamedSharding(self.mesh, PartitionSpec())
        opt_state = shardings_like(abstract.opt_state, abstract.model, model, self.mesh)
        return TrainState(replicated, model, opt_state, replicated)

    def abstract_state(self) -> TrainState:
        """Returns shapes, dtypes and shardings of the state, without making it."""
        state: TrainState = jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            jax.eval_shape(self.step.init),
            self.shardings(),
        )
        return state

    def compiled_init(self) -> Any:
        """Returns the jitted function that makes the first state, sharded from the start."""
        return jax.jit(self.step.init, out_shardings=self.shardings())

    def compiled_step(self) -> Any:
        """Returns the jitted train step `(state, batch) -> (state, metrics)`; it donates `state`."""
        return jax.jit(
            self._under_mesh(self.step), donate_argnums=0, out_shardings=(self.shardings(), None)
        )

    def compiled_evaluation(self) -> Any:
        """Returns the jitted evaluation `(model_state, batch) -> losses`."""
        return jax.jit(self._under_mesh(self.step.evaluate))

    def _under_mesh(self, fn: Any) -> Any:
        activations = ActivationSharding(self.mesh, self.config.activation_rules)

        def under_mesh(*args: Any) -> Any:
            with sharding_activations(activations):
                return fn(*args)

        return under_mesh

    def put(self, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
        """Returns a process's part of a batch as global arrays, sharded over the mesh."""
        axes = ("batch", "time")
        spec = partition_spec(axes, self.config.activation_rules, self.mesh, where="batch")
        sharding = NamedSharding(self.mesh, spec)
        return {
            name: jax.make_array_from_process_local_data(sharding, array)
            for name, array in batch.items()
        }

    # -- Running -----------------------------------------------------------------------------

    def run(self, directory: Path | str, observers: Iterable[Observer] = ()) -> TrainResult:
        """Trains until `max_steps`, and returns the last state.

        The directory is claimed for this config. Where it holds a checkpoint the run goes on from
        there, bit by bit as if it had never stopped. Ctrl-C saves a checkpoint and returns.

        Args:
            directory: The run directory; made where it is absent.
            observers: Told of every event.

        Raises:
            CheckpointError: The directory is another config's or in use, or a checkpoint does not
                fit.
            DataError: The data cannot be read.
            TrainingError: Too many steps had a loss that is not finite.
        """
        claim = RunDirectory(
            directory,
            config_text=render_config(self.config),
            config_json=to_json(self.config),
            may_change=MAY_CHANGE,
        )
        with claim, jax.set_mesh(self.mesh):
            return _Run(self, claim.path, Observers(observers)).run()

    def evaluate(self, model_state: Any) -> dict[str, float]:
        """Returns the metrics of a model's state on the held-out text; empty where none is held out."""
        with jax.set_mesh(self.mesh):
            batches = self.data.heldout(
                process_index=jax.process_index(), process_count=jax.process_count()
            )
            losses = [self._evaluation(model_state, self.put(batch)) for batch in batches]
            meter = LossMeter()
            for one in jax.device_get(losses):
                meter.add(one)
            return meter.metrics() if losses else {}

    @cached_property
    def _evaluation(self) -> Any:
        return self.compiled_evaluation()

    def _check_vocabulary(self) -> None:
        size = getattr(self.config.model, "vocab_size", None)
        if size is not None and size < self.data.tokenizer.vocab_size:
            raise ConfigError(
                f"vocab_size is {size}, but the tokenizer has {self.data.tokenizer.vocab_size} tokens",
                where="model.vocab_size",
                mend=f"--set model.vocab_size={self.data.tokenizer.vocab_size}",
            )


class _Run:
    """One run of a trainer in a claimed directory."""

    def __init__(self, trainer: Trainer, directory: Path, observers: Observers) -> None:
        self.trainer = trainer
        self.cfg = trainer.config
        self.directory = directory
        self.tell = observers
        self.checkpointer: Checkpointer = self.cfg.checkpoint.build(
            directory=str(directory / "checkpoints")
        )
        self.batches = trainer.data.train(
            process_index=jax.process_index(), process_count=jax.process_count()
        )
        self.heldout: dict[str, float] = {}
        self.pending: list[StepMetrics] = []
        self.since = time.perf_counter()

    def run(self) -> TrainResult:
        state, step = self._first_state()
        self.metrics = MetricsFile(self.directory / "metrics.jsonl", step=step)
        self._announce(step)
        train_step = self.trainer.compiled_step()
        is_stopped = False
        self.since = time.perf_counter()
        try:
            while step < self.cfg.max_steps:
                batch = self.trainer.put(next(self.batches))
                state, metrics = train_step(state, batch)
                step += 1
                self.pending.append(metrics)
                self._after(step, state)
        except KeyboardInterrupt:
            is_stopped = True
            self._save(step, state)
        finally:
            self.checkpointer.close()
            self.metrics.close()
        if not self.heldout and not is_stopped:
            self.heldout = self.trainer.evaluate(state.model)
        self.tell(RunFinished(step=step, is_complete=not is_stopped))
        return TrainResult(step, state, self.heldout, not is_stopped)

    def _first_state(self) -> tuple[TrainState, int]:
        if self.checkpointer.latest() is None:
            return self.trainer.compiled_init()(), 0
        restored = self.checkpointer.restore(self.trainer.abstract_state())
        self.batches.set_state(restored.extra["data"])
        return restored.state, restored.step

    def _announce(self, step: int) -> None:
        trainer, hardware = self.trainer, Hardware.detect()
        dtype = trainer.model.dtypes.compute
        peak = hardware.peak_flops.get(str(dtype))
        axes = {name: size for name, size in trainer.mesh.shape.items() if size > 1}
        self.tell(
            RunStarted(
                directory=str(self.directory),
                step=step,
                max_steps=self.cfg.max_steps,
                num_params=count_params(trainer.step.specs),
                hardware=hardware.name,
                mesh=" x ".join(f"{name} {size}" for name, size in axes.items()) or "1 device",
                data=str(trainer.data.summary()),
                kernels="",
                flops_per_token=flops_per_token(trainer.model, self.cfg.data.seq_len),
                flops_formula=FORMULA,
                peak_flops=peak * hardware.chips if peak else None,
            )
        )

    def _after(self, step: int, state: TrainState) -> None:
        is_last = step == self.cfg.max_steps
        if step % self.cfg.log_every_steps == 0 or is_last:
            self._log(step, state)
        if step % self.cfg.eval_every_steps == 0 or is_last:
            self._evaluate(step, state)
        if self.checkpointer.is_due(step) or is_last:
            self._save(step, state)

    def _log(self, step: int, state: TrainState) -> None:
        fetched: list[StepMetrics] = jax.device_get(self.pending)
        elapsed = time.perf_counter() - self.since
        meter = LossMeter()
        for metrics in fetched:
            meter.add(metrics.losses)
        tokens = len(fetched) * self.cfg.data.batch_size * self.cfg.data.seq_len
        skipped = int(jax.device_get(state.skipped))
        values = {
            **meter.metrics(),
            "tokens_per_s": tokens / elapsed,
            "step_time_s": elapsed / len(fetched),
            "gradient_norm": float(fetched[-1].gradient_norm),
            "learning_rate": float(self.trainer.learner.schedule(step - 1)),
            "skipped_steps": float(skipped),
            **summary_metrics(fetched[-1].summaries),
        }
        self.pending.clear()
        self.metrics.write(step, "train", values)
        self.tell(StepsDone(step=step, metrics=values))
        self.since = time.perf_counter()
        if skipped > self.cfg.max_skipped_steps:
            raise TrainingError(
                f"{skipped} steps had a loss or gradient that is not finite; parameters are those "
                "from before each",
                where=f"step {step}",
                mend="lower learner.schedule.peak, or raise max_skipped_steps",
            )

    def _evaluate(self, step: int, state: TrainState) -> None:
        started = time.perf_counter()
        self.heldout = self.trainer.evaluate(state.model)
        if self.heldout:
            self.metrics.write(step, "heldout", self.heldout)
            self.tell(Evaluated(step=step, metrics=self.heldout))
        self.since += time.perf_counter() - started

    def _save(self, step: int, state: TrainState) -> None:
        if step == 0 or self.checkpointer.latest() == step:
            return
        started = time.perf_counter()
        self.checkpointer.save(step, state, {"data": self.batches.get_state()})
        self.tell(CheckpointSaved(step=step))
        self.since += time.perf_counter() - started


def _check(cfg: Trainer.Config) -> None:
    names = ("max_steps", "num_micro_batches", "log_every_steps", "eval_every_steps")
    problems = [
        f"{name} is {getattr(cfg, name)}; expected 1 or more"
        for name in names
        if getattr(cfg, name) is not REQUIRED and getattr(cfg, name) < 1
    ]
    if problems:
        raise ConfigError("\n".join(problems))
