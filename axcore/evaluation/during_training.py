"""`EvaluateTasks`: tasks every n steps of a run, which changes nothing of what it trains."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from axcore.config import REQUIRED, PositiveInt, config, evolve
from axcore.errors import ConfigError
from axcore.evaluation.engine_model import EngineModel
from axcore.evaluation.evaluate import (
    check_tasks,
    directory_of,
    evaluate_tasks,
    find_tasks,
    identity_of,
)
from axcore.inference import Engine, EngineConfig
from axcore.ops import use_policy
from axcore.plugins import Hardware
from axcore.runs import no_text_reason
from axcore.trainer.guards import Guard


class EvaluateTasks(Guard):
    """Writes results to `RUN/evaluation/STEP`, and metrics of the split `evaluation`.

    The engine keeps a copy of the weights and its caches between evaluations.
    """

    @config
    class Config(Guard.Config):
        """Describes an `EvaluateTasks`.

        Args:
            tasks: As `axcore evaluate --tasks` takes them.
            every_steps: Steps between evaluations.
            limit: Only so many samples of each task.
            rows: Answers that are sampled at once.
        """

        tasks: tuple[str, ...] = REQUIRED
        every_steps: PositiveInt = 100
        limit: PositiveInt = 100
        rows: PositiveInt = 16

    config: Config

    def on_start(self, trainer: Any, directory: Path) -> None:
        """Find the tasks, so that what is wrong with them shows before the first step.

        Raises:
            ConfigError: There is no such task, or the run cannot be evaluated so.
            DataError: A task has no samples.
        """
        reason = no_text_reason(trainer)
        if reason is not None:
            raise ConfigError(f"tasks cannot be evaluated: {reason}", where="guards")
        limit = self.config.limit
        found = find_tasks(self.config.tasks)
        self._tasks = {name: evolve(cfg, limit=limit) for name, cfg in found.items()}
        check_tasks(self._tasks)
        self._trainer, self._directory = trainer, Path(directory)
        self._engine: Engine | None = None

    def measured(self, step: int, state: Any) -> Mapping[str, float]:
        """Return the metrics of every task where an evaluation is due."""
        if step % self.config.every_steps:
            return {}
        trainer = self._trainer
        weights = trainer.step.own_part(trainer.step.evaluated_model(state))
        engine = self._engine_with(weights)
        identity = identity_of(self._directory.name, step, weights)

        def measure() -> dict[str, float]:
            results = evaluate_tasks(
                self._tasks,
                EngineModel(engine),
                identity,
                directory_of("", self._directory, step),
                restarts=True,
            )
            return {
                f"{task}/{name}": one.value
                for task, result in results.items()
                for name, one in result.metrics.items()
            }

        return engine.together("evaluation of tasks", measure)

    def _engine_with(self, weights: Any) -> Engine:
        """Return the engine with the present weights; its programs are compiled once."""
        trainer = self._trainer
        if self._engine is not None:
            self._engine.replace_weights(weights)
            return self._engine
        length = trainer.config.data.seq_len
        cfg = EngineConfig(max_num_seqs=self.config.rows, max_length=length, max_queue=1_000_000)
        with use_policy(trainer.compiler.kernel_policy):
            self._engine = Engine(trainer.model, weights, trainer.data.tokenizer, cfg)
        return self._engine


@config
class Evaluate:
    """Evaluates tasks every n steps of training.

    Args:
        tasks: As `axcore evaluate --tasks` takes them.
        every_steps: Steps between evaluations.
        limit: Only so many samples of each task.
    """

    tasks: tuple[str, ...] = REQUIRED
    every_steps: PositiveInt = 100
    limit: PositiveInt = 100

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config that evaluates them."""
        guard = EvaluateTasks.Config(
            tasks=self.tasks, every_steps=self.every_steps, limit=self.limit
        )
        return evolve(cfg, guards=(*cfg.guards, guard))
