"""`Generator`: continues a prompt, by an engine of its own.

A text that fills the context continues from its last half, which is read again.
"""

from collections.abc import Hashable
from typing import Any

import attrs

from axcore.data import Tokenizer, decoded
from axcore.errors import ConfigError
from axcore.inference.config import EngineConfig
from axcore.inference.engine import Engine
from axcore.inference.request import Request, SamplerKind, Sampling, kind_for
from axcore.inference.sample_many import sample_seed
from axcore.layers import num_whole_tokens
from axcore.module import Module

_PREFILL_TOKENS = 64
"""Tokens of a prompt that one call reads."""

_DECODE_STEPS = 16
"""Tokens of a row that one call samples."""

_MAX_SAMPLES = 32
"""Samples that are sampled at once."""


@attrs.frozen
class Generation:
    """One continuation of a prompt.

    Args:
        prompt: The prompt.
        text: What was generated, without the prompt.
        num_tokens: Number of tokens sampled, the end token not counted.
        is_ended: Whether the model ended the text itself.
    """

    prompt: str
    text: str
    num_tokens: int
    is_ended: bool

    def __str__(self) -> str:
        return self.prompt + self.text


@attrs.define(eq=False)
class _Sample:
    """A continuation while it is sampled.

    Args:
        number: Of the sample.
        text: Tokens of the prompt and of what was sampled.
        num_left: Tokens that may still be sampled.
        is_ended: Whether the model ended it.
    """

    number: int
    text: list[int]
    num_left: int
    is_ended: bool = False

    @property
    def is_finished(self) -> bool:
        return self.is_ended or not self.num_left


class Generator:
    """Samples text from a model with a `logits` entry, as `CausalLM` has.

    Args:
        model: The model.
        state: Its state.
        tokenizer: The tokenizer that it was trained with.
        context: Number of last tokens that the model sees, its training length usually; 2 or more.
    """

    def __init__(self, model: Module, state: Any, tokenizer: Tokenizer, *, context: int) -> None:
        self.model = model
        self.state = state
        self.tokenizer = tokenizer
        self.context = context
        self._engines: dict[Hashable, Engine] = {}

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int,
        num_samples: int = 1,
        sampling: Sampling = Sampling(),  # noqa: B008 - a frozen value
        seed: int = 0,
        parses_special: bool = True,
    ) -> tuple[Generation, ...]:
        """Return continuations of a prompt.

        Args:
            prompt: The text to continue; empty only where the tokenizer has a token to begin with.
            max_tokens: Tokens sampled at most.
            num_samples: Number of continuations, each with its own random keys.
            sampling: How tokens are sampled.
            seed: Decides the samples. A sample is the same however many are sampled with it.
            parses_special: Whether special tokens that the prompt writes out, as `<|im_start|>`,
                are these tokens; otherwise they are characters.

        Raises:
            ConfigError: The prompt has no token at all, or a number makes no sense.
        """
        sampling.check(self.tokenizer.vocab_size)
        if max_tokens < 1 or num_samples < 1:
            raise ConfigError(
                f"max_tokens is {max_tokens} and num_samples {num_samples}; expected 1 or more"
            )
        tokens = self.tokenizer.encode_prompt(prompt, parses_special=parses_special).tolist()
        if not tokens:
            raise ConfigError("the prompt is empty", hint="give a prompt of at least one token")
        samples = [_Sample(number, list(tokens), max_tokens) for number in range(num_samples)]
        engine = self._engine(num_samples, max_tokens, kind_for([sampling]))

        def sampled() -> list[tuple[list[int], bool]]:
            window = 0
            while open_samples := [sample for sample in samples if not sample.is_finished]:
                self._continue(engine, open_samples, sampling, f"{seed}/{window}")
                window += 1
            return [(sample.text[len(tokens) :], sample.is_ended) for sample in samples]

        return tuple(
            Generation(prompt, decoded(self.tokenizer, found), len(found), is_ended)
            for found, is_ended in engine.together("generation", sampled)
        )

    def replace_weights(self, state: Any) -> None:
        """Take over another state of the model; nothing is compiled again."""
        self.state = state
        for engine in self._engines.values():
            engine.replace_weights(state)

    def _continue(
        self, engine: Engine, samples: list[_Sample], sampling: Sampling, key: str
    ) -> None:
        """Continue samples until they end or fill the context."""
        answers = []
        for sample in samples:
            is_long = len(sample.text) >= self.context
            seen = sample.text[-max(1, self.context // 2) :] if is_long else sample.text
            request = Request(
                prompt=tuple(seen),
                max_tokens=min(sample.num_left, self.context - len(seen)),
                sampling=sampling,
                seed=sample_seed(key, sample.number),
            )
            answers.append(engine.submit(request))
        for sample, answer in zip(samples, answers, strict=True):
            found = answer.result()
            sample.text += [token.id for token in found.tokens]
            sample.num_left -= len(found.tokens)
            sample.is_ended = found.finish_reason == "stop"

    def _engine(self, num_samples: int, max_tokens: int, kind: SamplerKind) -> Engine:
        """Return an engine with few programs, each of a fixed shape."""
        rows = min(num_samples, _MAX_SAMPLES)
        count = max(1, min(_DECODE_STEPS, max_tokens - 1))
        key = (rows, count, kind)
        if key not in self._engines:
            page_size = min(16, self.context)
            # Prompts are text alone, and a call has to have room for an input even so.
            whole = -(-num_whole_tokens(self.model.config) // page_size) * page_size
            cfg = EngineConfig(
                max_num_seqs=rows,
                max_length=self.context,
                page_size=page_size,
                max_num_batched_tokens=max(_PREFILL_TOKENS, page_size, whole),
                num_decode_steps=count,
                fixed_shapes=True,
                sampler_kinds=(kind,),
                max_queue=num_samples,
            )
            self._engines[key] = Engine(self.model, self.state, self.tokenizer, cfg)
        return self._engines[key]
