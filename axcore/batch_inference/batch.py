"""`BatchInference`: samples answers to the prompts of a file, and keeps each as it is there.

All that can be wrong with prompts and settings is found before anything is sampled. The noise of
sample j of prompt i follows from the seed, i and j, and calls have fixed shapes: so an answer has
the same bits whatever is sampled with it, and a killed run resumes as if it had never ended.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import jax

from axcore import __version__
from axcore.batch_inference.answers import AnswerFile
from axcore.batch_inference.inputs import prompt_inputs
from axcore.batch_inference.prompts import Prompt, PromptFile, PromptSummary
from axcore.config import PositiveInt, config, evolve, to_dict
from axcore.data import Tokenizer
from axcore.errors import ConfigError, DataError
from axcore.evaluation import identity_of
from axcore.inference import (
    AnyEngine,
    Completion,
    EngineConfig,
    Request,
    Sampling,
    sample_many,
    sample_seed,
)
from axcore.inference.request import MAX_LOGPROBS, kind_for
from axcore.layers import num_whole_tokens
from axcore.parallel import MeshShape
from axcore.runs import OpenedModel, engine_for


@config
class BatchConfig:
    """What is sampled for each prompt, and how many at once.

    Attributes:
        num_samples: Answers to each prompt.
        max_tokens: Tokens of an answer at most; fewer where the model's length leaves fewer.
        sampling: How tokens are sampled.
        seed: Decides the samples, with the number of the prompt and that of the sample.
        stop: An answer ends before the first of these.
        num_logprobs: Number of likeliest tokens whose log-probabilities are kept with that of each
            token; None keeps none.
        parses_special: Whether special tokens that a prompt writes out are these tokens.
        on_error: Whether nothing is sampled where a line holds no prompt, or such a line is
            answered by what is wrong with it.
        inputs_root: The folder below which are the pictures, or other files, that conversations may
            name; None for that of the prompts.
        mesh: Sizes by mesh axis of the devices that the weights are split over, as `{"model": 2}`;
            -1 takes all. None takes as few as hold the weights in half of their memory.
        engine: How many answers are sampled at once, and in which pieces. Without `fixed_shapes`
            answers differ by rounding from run to run.
    """

    num_samples: PositiveInt = 1
    max_tokens: PositiveInt = 200
    sampling: Sampling = Sampling()
    seed: int = 0
    stop: tuple[str, ...] = ()
    num_logprobs: int | None = None
    parses_special: bool = True
    on_error: Literal["stop", "skip"] = "stop"
    inputs_root: str | None = None
    mesh: MeshShape | None = None
    engine: EngineConfig = EngineConfig(
        max_num_seqs=32,
        # Samples of one prompt share all of its pieces but the last one.
        max_num_batched_tokens=128,
        fixed_shapes=True,
        max_queue=1 << 20,
    )

    def check(self, vocab_size: int | None = None) -> None:
        """Raise ConfigError where a value makes no sense.

        Args:
            vocab_size: Number of tokens that there are; None leaves tokens unchecked.
        """
        self.sampling.check(vocab_size)
        if self.num_logprobs is not None and not 0 <= self.num_logprobs <= MAX_LOGPROBS:
            raise ConfigError(
                f"num_logprobs is {self.num_logprobs}; expected 0 to {MAX_LOGPROBS}",
                hint="0 keeps the log-probability of each sampled token alone",
            )
        if "" in self.stop:
            raise ConfigError("a stop string is empty", hint="leave it out")


@attrs.frozen(kw_only=True)
class BatchProgress:
    """How far a batch is.

    Attributes:
        num_prompts: Prompts there are.
        num_before: Those that were answered when this process began.
        num_done: Those that are answered.
        num_tokens: Tokens that this process sampled, of answers that are kept.
        seconds: Since this process began to sample.
    """

    num_prompts: int
    num_before: int
    num_done: int
    num_tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens that were sampled in a second."""
        return self.num_tokens / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """What the other prompts will take, if they take as long as those so far."""
        num_now = self.num_done - self.num_before
        return self.seconds / num_now * (self.num_prompts - self.num_done) if num_now else None


class BatchInference:
    """The answers of a model to the prompts of a file.

    Args:
        opened: The model.
        prompts: JSON lines; see `PromptFile`.
        answers: Where answers are kept; see `AnswerFile`.
        cfg: What is sampled.
        changes: Named changes that the model was opened with.
        tokenizer: In the place of the model's own, as one with another chat template.

    Attributes:
        summary: What the prompts are.

    Raises:
        ConfigError: A value of the config makes no sense.
        DataError: There are no prompts, or one cannot be answered and none is to be skipped.
    """

    def __init__(
        self,
        opened: OpenedModel,
        prompts: Path,
        answers: Path,
        cfg: BatchConfig = BatchConfig(),  # noqa: B008 - a frozen value
        *,
        changes: Sequence[str] = (),
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.config, self._opened, self._changes = cfg, opened, tuple(changes)
        self._tokenizer = tokenizer or opened.tokenizer
        cfg.check(self._tokenizer.vocab_size)
        self._max_length = cfg.engine.max_length or opened.length
        self._path = answers
        if answers.exists() and prompts.exists() and answers.samefile(prompts):
            raise ConfigError("prompts and answers are one file", where=str(answers))
        self._prompts = PromptFile(
            prompts,
            self._tokenizer,
            max_length=self._max_length,
            parses_special=cfg.parses_special,
            inputs=prompt_inputs(
                opened, tokenizer, Path(cfg.inputs_root or prompts.parent).expanduser()
            ),
        )
        self.summary = self._prompts.summary(cfg.max_tokens)
        if cfg.on_error == "stop" and self.summary.first_error is not None:
            raise _refusal(self.summary)

    def run(
        self,
        listener: Callable[[BatchProgress], None] = lambda _: None,
        *,
        when_compiled: Callable[[int, int, str], None] | None = None,
    ) -> BatchProgress:
        """Answer the prompts that have no answer yet, and return how far that came: to the end.

        Args:
            listener: Is called at the start, and when an answer is kept.
            when_compiled: Is called with the number of compiled programs, of all, and the last.

        Raises:
            DataError: The file of answers has those of something else, or is damaged.
            EngineError: A step failed. What is kept stays.
        """
        with AnswerFile(self._path, self._origin(), _machine()) as answers:
            total, before = self.summary.num_prompts, answers.num_lines
            progress = BatchProgress(num_prompts=total, num_before=before, num_done=before)
            if before > total:
                raise DataError(
                    f"it has {before} lines, and there are {total} prompts", where=str(self._path)
                )
            listener(progress)
            if before == total:
                return progress
            engine, _ = engine_for(
                self._opened,
                self._engine_config(),
                mesh=self.config.mesh,
                tokenizer=self._tokenizer,
            )
            with engine:
                if not self.config.engine.fixed_shapes:  # two shapes are compiled as they are met
                    engine.warm_up(when_compiled)
                began, num_tokens = time.monotonic(), 0
                for line in self._lines(engine, before):
                    answers.add(line)
                    num_tokens += sum(one["num_tokens"] for one in line.get("samples", ()))
                    progress = attrs.evolve(
                        progress,
                        num_done=answers.num_lines,
                        num_tokens=num_tokens,
                        seconds=time.monotonic() - began,
                    )
                    listener(progress)
            answers.sync()
            return progress

    def _engine_config(self) -> EngineConfig:
        """Return that of the config, in whose calls an input has room where it must be whole."""
        cfg = self.config.engine
        page_size = cfg.page_size or 1
        whole = -(-num_whole_tokens(self._opened.model.config) // page_size) * page_size
        return evolve(
            cfg,
            sampler_kinds=(kind_for([self.config.sampling]),),
            max_num_batched_tokens=max(cfg.max_num_batched_tokens, whole),
        )

    def _lines(self, engine: AnyEngine, first: int) -> Iterator[dict[str, Any]]:
        """Yield the lines of the prompts from one on, in their order."""
        prompts = itertools.islice(self._prompts, first, None)
        # The engine reads ahead of what is written; in between are as many as are in flight.
        written, asked = itertools.tee(prompts)
        completions = sample_many(
            engine, (one for prompt in asked for one in self._requests(prompt))
        )
        for prompt in written:
            line = {"index": prompt.index, **prompt.fields}
            if prompt.error is not None:
                yield {**line, "error": str(prompt.error.what)}
            else:
                drawn = itertools.islice(completions, self.config.num_samples)
                yield {**line, "samples": [self._sample(one) for one in drawn]}

    def _requests(self, prompt: Prompt) -> Iterator[Request]:
        cfg = self.config
        if prompt.error is not None:
            return
        for number in range(cfg.num_samples):
            yield Request(
                prompt=prompt.tokens,
                inputs=prompt.inputs,
                max_tokens=min(cfg.max_tokens, self._max_length - len(prompt.tokens)),
                sampling=cfg.sampling,
                seed=sample_seed(cfg.seed, prompt.index, number),
                stop=cfg.stop,
                num_logprobs=cfg.num_logprobs,
            )

    def _sample(self, found: Completion) -> dict[str, Any]:
        """Return a sample as it is kept; its tokens include the end token."""
        tokens = (*found.tokens, *(() if found.end is None else (found.end,)))
        sample: dict[str, Any] = {
            "text": found.text,
            "tokens": [one.id for one in tokens],
            "num_tokens": len(tokens),
            "finish_reason": found.finish_reason,
        }
        if self.config.num_logprobs is not None:
            sample["logprobs"] = [one.logprob for one in tokens]
        if self.config.num_logprobs:
            sample["top_logprobs"] = [one.top_logprobs for one in tokens]
        return sample

    def _origin(self) -> dict[str, Any]:
        """Return all that the answers follow from, as plain values."""
        cfg = to_dict(self.config)
        for name in ("on_error", "inputs_root"):  # where they matter, prompts differ
            del cfg[name]
        identity = identity_of(self._opened.name, self._opened.step, self._opened.state)
        return {
            "prompts": self.summary.text_digest,
            "prompt_tokens": self.summary.token_digest,
            "model": {"step": identity.step, "weights": identity.weights},
            "changes": list(self._changes),
            "config": cfg,
        }


def _refusal(summary: PromptSummary) -> DataError:
    """Return the error of a file in which lines cannot be answered."""
    first = summary.first_error
    assert first is not None
    others = summary.num_bad - 1
    more = f" {others} more of {summary.num_prompts} lines are wrong." if others else ""
    return DataError(f"{first.what}{more}", where=first.where, hint=first.hint)


def _machine() -> dict[str, str]:
    """Return what may change the rounding of the same computation."""
    device = jax.local_devices()[0]
    return {"axcore": __version__, "jax": jax.__version__, "device": str(device.device_kind)}
