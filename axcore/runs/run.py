"""`Run`: what a run directory holds, opened to look at, to generate from and to evaluate."""

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from axcore.checkpoint import Checkpointer
from axcore.config import evolve
from axcore.errors import CheckpointError, ConfigError, DataError
from axcore.inference import Generation, Generator, Sampling
from axcore.ops import use_policy
from axcore.runs.code import read_run_config, warn_of_earlier_code
from axcore.runs.metrics import Metrics, read_metrics
from axcore.runs.run_html import run_html
from axcore.trainer import Trainer
from axcore.trainer.run_directory.origin import opened_config, read_origin
from axcore.trainer.step import TrainState

ANY_DEVICES = {"fsdp": -1}
"""A mesh that fits however many devices there are; those of training may not be here."""


class RestoredModel(NamedTuple):
    """The state of a model, and the step that it was saved at."""

    state: Any
    step: int


class Run:
    """A run directory. Nothing but the config is read before it is asked for.

    Attributes:
        directory: The run directory.
        config: The config that the run was started with, resolved for its hardware.
    """

    directory: Path
    config: Trainer.Config

    def __init__(
        self, directory: Path | str, *, step: int | None = None, trust_code: bool = False
    ) -> None:
        """Opens a run.

        Args:
            directory: What training was given as its directory.
            step: The checkpoint to use; by default the newest.
            trust_code: Whether code that came with the run is run to open it, though this user
                did not train it. Code of the user's own runs needs no such leave.

        Raises:
            CheckpointError: The directory is no run, a file in it is not what it was, or its code
                is not trusted.
            ConfigError: Its config cannot be read.
        """
        self.directory = Path(directory)
        self._step = step
        file = self.directory / "config.json"
        if not file.is_file():
            raise CheckpointError(
                "the directory is no run: it has no config.json",
                where=str(directory),
                hint="name a directory that training made, such as runs/tiny",
            )
        self._origin = read_origin(self.directory)
        self.config = read_run_config(self.directory, self._origin, trust_code=trust_code)

    def __repr__(self) -> str:
        return f"<Run {str(self.directory)!r}>"

    def _repr_html_(self) -> str:
        return run_html(self.directory)

    @property
    def state(self) -> Any:
        """The state of the model: a nested dict of arrays, as `functional` takes it.

        Its parameters are their averages where the learner's config evaluates those.

        Raises:
            CheckpointError: The run has no checkpoint, or not that of the step asked for.
        """
        return self.trainer.step.own_part(self._restored.state)

    @property
    def step(self) -> int:
        """The step of `state`."""
        return self._restored.step

    @property
    def metrics(self) -> Metrics:
        """What the run logged so far: `metrics["train"]["loss"]`, beside `["train"]["step"]`."""
        return read_metrics(self.directory / "metrics.jsonl")

    @cached_property
    def trainer(self) -> Trainer:
        """The trainer of the run's config, on the devices at hand."""
        trainer: Trainer = evolve(self.opened_config, mesh=ANY_DEVICES).build()
        return trainer

    @property
    def opened_config(self) -> Trainer.Config:
        """The config, with files where they are now."""
        cfg: Trainer.Config = opened_config(self.config, self.directory, self._origin)
        return cfg

    @property
    def model(self) -> Any:
        """The module that `state` belongs to."""
        return self.trainer.model

    def generate(
        self,
        prompt: str = "",
        *,
        max_tokens: int = 200,
        sampling: Sampling = Sampling(),  # noqa: B008 - a frozen value
        seed: int = 0,
        parses_special: bool = True,
    ) -> Generation:
        """Returns a continuation of a prompt; `str()` of it is prompt and text.

        Special tokens that the prompt writes out are these tokens, unless `parses_special` is off.

        Raises:
            ConfigError: The prompt has no token at all, or a number makes no sense.
        """
        options: dict[str, Any] = {
            "sampling": sampling,
            "seed": seed,
            "parses_special": parses_special,
        }
        return self.samples(prompt, 1, max_tokens=max_tokens, **options)[0]

    def samples(
        self, prompt: str, num_samples: int, *, max_tokens: int = 200, **options: Any
    ) -> tuple[Generation, ...]:
        """Returns several continuations; the options are those of `Generator.generate`."""
        with use_policy(self.trainer.compiler.kernel_policy):
            return self._generator.generate(
                prompt, num_samples=num_samples, max_tokens=max_tokens, **options
            )

    def evaluate(self) -> dict[str, float]:
        """Returns the metrics on the run's validation text.

        Raises:
            DataError: The text cannot be read, or the run holds none out.
        """
        metrics = self.trainer.evaluate(self._restored.state)
        if not metrics:
            raise DataError(
                "the run holds out no text",
                where="data.validation_fraction",
                hint="train with --set data.validation_fraction=0.05",
            )
        return metrics

    @cached_property
    def checkpointer(self) -> Checkpointer:
        """What reads the run's checkpoints, those of a training that still runs too."""
        return Checkpointer.for_run(self.trainer.config.checkpoint, self.directory)

    def restored(self, step: int | None = None, *, on_host: bool = False) -> RestoredModel:
        """Reads the state of the model at a step; at the newest where None.

        Args:
            step: The step.
            on_host: Whether arrays stay in host memory, as numpy's.

        Raises:
            CheckpointError: The run has no checkpoint, or not that of the step.
        """
        if self.checkpointer.latest() is None:
            raise CheckpointError(
                "the run has no checkpoint yet",
                where=str(self.directory),
                hint="train it for longer",
            )
        whole = self.trainer.compiler.abstract_state()
        averages = self.trainer.learner.evaluated_part(whole.opt_state)
        template = TrainState(None, whole.model, averages, None)  # type: ignore[arg-type]
        if on_host:
            template = jax.tree.map(_on_host, template)
        found = self.checkpointer.restore(template, step=step, partial=True)
        warn_of_earlier_code(self.directory, found.step)
        state = self.trainer.step.evaluated_model(found.state)
        return RestoredModel(jax.tree.map(np.asarray, state) if on_host else state, found.step)

    @cached_property
    def _generator(self) -> Generator:
        """What draws text; it keeps the programs that it compiled."""
        return text_generator(self.trainer, self.state)

    @cached_property
    def _restored(self) -> RestoredModel:
        return self.restored(self._step)


def _on_host(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    host = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    updated: jax.ShapeDtypeStruct = leaf.update(sharding=host)  # type: ignore[no-untyped-call]
    return updated


def load_run(directory: Path | str, *, step: int | None = None, trust_code: bool = False) -> Run:
    """Opens a run directory; see `Run`."""
    return Run(directory, step=step, trust_code=trust_code)


def no_text_reason(trainer: Trainer) -> str | None:
    """Returns why a trainer's model generates no text; None where it does."""
    model, data = type(trainer.model), type(trainer.data)
    if not hasattr(model, "logits"):
        return f"{model.__qualname__} has no entry `logits`"
    if not hasattr(trainer.data, "tokenizer"):
        return f"{data.__qualname__} has no tokenizer"
    return None


def text_generator(trainer: Any, model_state: Any) -> Generator:
    """Returns what draws text from a trainer's model.

    Raises:
        ConfigError: The trainer's model or data is not of text.
    """
    reason = no_text_reason(trainer)
    if reason is not None:
        raise ConfigError(f"no text can be generated: {reason}", where="model")
    own = trainer.step.own_part(model_state)
    return Generator(
        trainer.model, own, trainer.data.tokenizer, context=trainer.config.data.seq_len
    )


def generate_text(
    trainer: Any, model_state: Any, prompt: str, **options: Any
) -> tuple[Generation, ...]:
    """Returns continuations of a prompt, by the kernels that a trainer trains with.

    Raises:
        ConfigError: The trainer's model or data is not of text.
    """
    generator = text_generator(trainer, model_state)
    with use_policy(trainer.compiler.kernel_policy):
        return generator.generate(prompt, **options)
