"""`PolicySampler`: completions of prompts by the policy in training, through an engine.

The noise of a token is a function of (seed, prompt, sample, place) alone. What completions are
sampled together decides the shapes of calls, and so the rounding of logits, but for an engine of
`fixed_shapes`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from axcore.data import Policy, Tokenizer
from axcore.inference import (
    Completion,
    CompletionStream,
    Engine,
    EngineConfig,
    Request,
    Sampling,
    sample_seed,
)


@attrs.frozen
class PromptRequest:
    """A prompt to complete.

    Args:
        tokens: Its tokens.
        number: Which prompt of the run it is.
    """

    tokens: tuple[int, ...]
    number: int


class PolicySampler:
    """Samples completions; makes the engine when it is first asked.

    Args:
        tokenizer: The run's.
        engine: How much is sampled at once.
        seed: Decides the samples.
    """

    def __init__(self, tokenizer: Tokenizer, engine: EngineConfig, seed: int) -> None:
        self._tokenizer, self._config, self._seed = tokenizer, engine, seed
        self._engine: Engine | None = None
        self._running: Sequence[CompletionStream] = ()
        self._known: Policy | None = None  # whose frozen weights the engine has

    def begin(
        self,
        policy: Policy,
        state: Any,
        prompts: Sequence[PromptRequest],
        *,
        num_samples: int,
        max_tokens: int,
        sampling: Sampling,
        stream: str,
    ) -> Callable[[], list[list[Completion]]]:
        """Begin to sample completions of each prompt.

        Log-probabilities are those of the distribution that was sampled.

        Args:
            policy: The policy.
            state: Its weights.
            prompts: What to complete.
            num_samples: Completions of each prompt.
            max_tokens: Tokens sampled at most.
            sampling: How tokens are sampled.
            stream: What the samples are for: training and evaluation draw other noise.

        Returns:
            A function that waits for the completions, and returns them by prompt.
        """
        # What is still being sampled would continue with the new weights.
        for one in self._running:
            one.result()
        engine = self._with_weights(policy, state)
        # Raw ones where they are the same, since those cost no softmax of their own.
        is_raw = sampling.is_plain and sampling.temperature in (0.0, 1.0)
        requests = [
            Request(
                prompt=one.tokens,
                max_tokens=max_tokens,
                sampling=sampling,
                seed=sample_seed(self._seed, stream, one.number, sample),
                num_logprobs=0,
                logprobs_mode="raw_logprobs" if is_raw else "processed_logprobs",
            )
            for one in prompts
            for sample in range(num_samples)
        ]
        # Together, so that which calls compute them follows from the prompts, and not from how
        # fast they come: a run that resumes samples the same bits.
        streams = self._running = engine.submit_all(requests)

        def finished() -> list[list[Completion]]:
            found = [one.result() for one in streams]
            return [
                found[begin : begin + num_samples] for begin in range(0, len(found), num_samples)
            ]

        return finished

    def _with_weights(self, policy: Policy, state: Any) -> Engine:
        if self._engine is None:
            self._engine = Engine(policy.module, state, self._tokenizer, self._config)
        elif policy is self._known and policy.specs is not None:
            # Where only adapters train, nothing but these.
            part = self._engine.missing_weights(state, policy.specs)
            self._engine.replace_weights(part, is_partial=True)
        else:
            self._engine.replace_weights(state)
        self._known = policy
        return self._engine
