"""Samples over time: text that a model continues at each evaluation, kept in the run directory.

samples.jsonl    one JSON object a line for each sample: step, prompt, text, num_tokens, is_ended
"""

import warnings
from pathlib import Path
from typing import Any

from axcore.config import PositiveInt, Resumable, config, evolve
from axcore.distributed import is_process_zero
from axcore.errors import ConfigError
from axcore.inference import Generator
from axcore.ops import use_policy
from axcore.plugins import Hardware
from axcore.runs.run import no_text_reason
from axcore.trainer import Guard
from axcore.trainer.run_directory.json_lines import append_json_line, read_json_lines
from axcore.trainer.step import TrainState

SAMPLES_NAME = "samples.jsonl"


class TextSamples(Guard):
    """Prompts that are continued at each evaluation, with the same seeds each time.

    It reads the state that was evaluated, and changes nothing of training. The first time compiles
    what generates text; its cache stays in memory.
    """

    @config
    class Config(Guard.Config):
        """The config of `TextSamples`.

        Args:
            prompts: What is continued; the prompt of the run's config where empty.
            max_tokens: Tokens of each sample at most.
            seed: Of the random numbers.
        """

        prompts: Resumable[tuple[str, ...]] = ()
        max_tokens: Resumable[PositiveInt] = 200
        seed: Resumable[int] = 0

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._cfg = cfg
        self._trainer: Any = None
        self._path = Path()
        self._generator: Generator | None = None

    def on_start(self, trainer: Any, directory: Path) -> None:
        """Check that text can be generated.

        Raises:
            ConfigError: The model or its data is not of text.
        """
        reason = no_text_reason(trainer)
        if reason is not None:
            raise ConfigError(
                f"no text can be sampled: {reason}",
                where="guards",
                hint="leave generate_samples out, or TextSamples out of `guards`",
            )
        self._trainer, self._path = trainer, directory / SAMPLES_NAME

    def on_evaluation(self, step: int, state: TrainState) -> None:
        """Generate a sample of each prompt, and keep it with its step."""
        trainer = self._trainer
        weights = trainer.step.own_part(trainer.step.evaluated_model(state))
        if self._generator is None:
            context = trainer.config.data.seq_len
            self._generator = Generator(
                trainer.model, weights, trainer.data.tokenizer, context=context
            )
        else:
            self._generator.replace_weights(weights)
        with use_policy(trainer.compiler.kernel_policy):
            for prompt in self._cfg.prompts or (trainer.config.prompt,):
                options: Any = {"max_tokens": self._cfg.max_tokens, "seed": self._cfg.seed}
                (completion,) = self._generator.generate(prompt, **options)
                if not is_process_zero():
                    continue
                line = {
                    "step": step,
                    "prompt": prompt,
                    "text": completion.text,
                    "num_tokens": completion.num_tokens,
                    "is_ended": completion.is_ended,
                }
                append_json_line(self._path, line)


@config
class GenerateSamples:
    """Text samples at each evaluation: `--modify 'generate_samples(max_tokens=100)'`.

    Args:
        prompts: What is continued; the prompt of the run's config where empty.
        max_tokens: Tokens of each sample at most.
    """

    prompts: tuple[str, ...] = ()
    max_tokens: PositiveInt = 200

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config that generates text samples."""
        samples = TextSamples.Config(prompts=self.prompts, max_tokens=self.max_tokens)
        return evolve(cfg, guards=(*cfg.guards, samples))


def read_samples(directory: Path) -> list[dict[str, Any]]:
    """Return the samples of a run, by step; those that a run which went back left are dropped.

    A line that is not a sample is named in a warning and passed over.
    """
    path = directory / SAMPLES_NAME
    lines = read_json_lines(path)
    found = [one for one in lines if isinstance(one.get("step"), int) and "text" in one]
    if len(found) < len(lines):
        warnings.warn(f"{len(lines) - len(found)} lines of {path} are not samples", stacklevel=2)
    kept: list[dict[str, Any]] = []
    for sample in found:
        kept = [one for one in kept if one["step"] <= sample["step"] and not _same(one, sample)]
        kept.append(sample)
    return kept


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two lines are of the same step and prompt; the later is of a run that went back."""
    return all(one.get(name) == other.get(name) for name in ("step", "prompt"))
