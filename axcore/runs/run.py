"""`Run`: what a run directory contains, opened to look at, to generate from and to evaluate."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding
from numpy.typing import NDArray

from axcore.checkpoint import Checkpointer
from axcore.config import evolve
from axcore.config.json_files import parse_json
from axcore.errors import CheckpointError, ConfigError, DataError
from axcore.inference import Generation, Generator, Sampling
from axcore.layers import ScalarHead
from axcore.markup import Html, card, curve, element, joined, table
from axcore.models import MaskedLM
from axcore.ops import use_policy
from axcore.report.page import REPORT_NAME
from axcore.resilience.run_summary import summarise_run
from axcore.runs.own_code import read_run_config, warn_of_earlier_code
from axcore.trainer import Trainer
from axcore.trainer.run_directory.origin import opened_config, read_origin
from axcore.trainer.step import TrainState
from axcore.whole_files import read_regular

ANY_DEVICES = {"fsdp": -1}
"""A mesh that fits however many devices there are; those of training may not be here."""


Metrics = Mapping[str, Mapping[str, NDArray[Any]]]
"""Arrays by split and name: `metrics["train"]["loss"]` has a value for each line of the split."""


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
        """Open a run.

        Args:
            directory: What training was given as its directory.
            step: The checkpoint to use; by default the newest.
            trust_code: Whether code that came with the run is run to open it, though this user
                did not train it. Code of the user's own runs needs no such leave.

        Raises:
            CheckpointError: It is not a run directory, a file in it is not what it was, or its code
                is not trusted.
            ConfigError: Its config cannot be read.
        """
        self.directory = Path(directory)
        self._step = step
        file = self.directory / "config.json"
        if not file.is_file():
            raise CheckpointError(
                "not a run directory: it has no config.json",
                where=str(directory),
                hint="name a directory that training made, such as runs/tiny",
            )
        self._origin = read_origin(self.directory)
        self.config = read_run_config(self.directory, self._origin, trust_code=trust_code)

    def __repr__(self) -> str:
        return f"<Run {str(self.directory)!r}>"

    def _repr_html_(self) -> str:
        return _run_html(self.directory)

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
        """What the run logged so far: `metrics["train"]["loss"]`, next to `["train"]["step"]`."""
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
        """Return a continuation of a prompt; `str()` of it is prompt and text.

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
        """Return several continuations; the options are those of `Generator.generate`."""
        with use_policy(self.trainer.compiler.kernel_policy):
            return self._generator.generate(
                prompt, num_samples=num_samples, max_tokens=max_tokens, **options
            )

    def evaluate(self) -> dict[str, float]:
        """Return the metrics on the run's validation text.

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
        """Read the state of the model at a step; at the newest where None.

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
        """The generator of text; it keeps the programs that it compiled."""
        return _text_generator(self.trainer, self.state)

    @cached_property
    def _restored(self) -> RestoredModel:
        return self.restored(self._step)


def _on_host(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    host = SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    updated: jax.ShapeDtypeStruct = leaf.update(sharding=host)  # type: ignore[no-untyped-call]
    return updated


def load_run(directory: Path | str, *, step: int | None = None, trust_code: bool = False) -> Run:
    """Open a run directory; see `Run`."""
    return Run(directory, step=step, trust_code=trust_code)


def no_text_reason(trainer: Trainer) -> str | None:
    """Return why a trainer's model generates no text; None where it does."""
    model, data = type(trainer.model), type(trainer.data)
    if not hasattr(model, "logits"):
        return f"{model.__qualname__} has no entry `logits`"
    if isinstance(trainer.model, MaskedLM):
        return f"{model.__qualname__} fills in tokens, and continues no text"
    if isinstance(getattr(trainer.model, "head", None), ScalarHead):
        return "its head gives one number, a reward, and no token"
    if not hasattr(trainer.data, "tokenizer"):
        return f"{data.__qualname__} has no tokenizer"
    return None


def _text_generator(trainer: Any, model_state: Any) -> Generator:
    """Return the generator of text from a trainer's model.

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
    """Return continuations of a prompt, by the kernels that a trainer trains with.

    Raises:
        ConfigError: The trainer's model or data is not of text.
    """
    generator = _text_generator(trainer, model_state)
    with use_policy(trainer.compiler.kernel_policy):
        return generator.generate(prompt, **options)


def read_metrics(path: Path) -> Metrics:
    """Return the metrics in a `metrics.jsonl`; empty where there is no such file.

    A value that some lines of a split lack is nan there. A last line without its end is passed
    over: it is being written, or was when its process was killed, and then it is written again.

    Raises:
        CheckpointError: A line is damaged.
    """
    splits: dict[str, list[dict[str, Any]]] = {}
    text = read_regular(path).decode("utf-8") if path.exists() else ""
    lines = text.splitlines(keepends=True)
    if lines and not (lines[-1].endswith("\n") or _is_whole(lines[-1])):
        lines.pop()
    for number, line in enumerate(lines, 1):
        values = _parsed(line, f"{path}:{number}")
        splits.setdefault(values.pop("split"), []).append(values)
    return {split: _arrays(lines) for split, lines in splits.items()}


def _is_whole(line: str) -> bool:
    try:
        parse_json(line)
    except ValueError:
        return False
    return True


def _parsed(line: str, where: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = parse_json(line)
        return {**values, "step": int(values["step"]), "split": str(values["split"])}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the line does not hold metrics: {type(error).__name__}: {error}",
            where=where,
            hint="take the line out; a run that resumes drops what follows its checkpoint",
        ) from error


def _arrays(lines: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    names = {name: None for line in lines for name in line}
    columns = {name: [_number(line.get(name, "nan")) for line in lines] for name in names}
    return {
        name: np.array(column, np.int64 if name == "step" else np.float64)
        for name, column in columns.items()
    }


def _number(value: Any) -> float:
    """Return a value as it was written; JSON has no nan and no infinity, so they are text."""
    return float(value) if isinstance(value, (int, float, str)) else float("nan")


def _run_html(directory: Path) -> str:
    """Return what is known of a run as HTML; a damaged file of it is named."""
    summary = summarise_run(directory)
    note = f"run, {summary.state}, step {summary.last_step or 0} of {summary.max_steps}"
    try:
        metrics = read_metrics(directory / "metrics.jsonl")
    except CheckpointError as error:
        shown = element("div", str(error), class_="bad")
    else:
        shown = _losses(metrics)
    return card(str(directory), note, shown, _report_line(directory))


def _losses(metrics: Metrics) -> Html:
    """Return the last loss of each split, and the curve of the training loss."""
    rows = [
        [split, f"{found['loss'][-1]:.4f}", str(found["step"][-1])]
        for split, found in metrics.items()
        if "loss" in found
    ]
    if not rows:
        return element("div", "nothing is logged yet", class_="soft")
    header = ("split", "last loss", "at step")
    losses = table(header, rows, numbers=header[1:])
    train = metrics.get("train", {})
    if "loss" not in train:
        return losses
    steps, values = train["step"].tolist(), train["loss"].tolist()
    return joined([losses, curve(steps, values, label="training loss over steps")])


def _report_line(directory: Path) -> Html:
    path = directory / REPORT_NAME
    if path.exists():
        return element("div", "report: ", element("code", path))
    command = element("code", f"axcore report {directory}")
    return element("div", command, " writes a report", class_="soft")
