"""`PolicySampler`: completions of prompts by the policy in training, through an engine.

The noise of a token is a function of (seed, prompt, sample, turn, place) alone. What is sampled
together decides the shapes of calls, and so the rounding of logits, but for an engine of
`fixed_shapes`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from axcore.data import Policy, Tokenizer
from axcore.inference import (
    Completion,
    Engine,
    EngineConfig,
    Request,
    Sampling,
    sample_seed,
)
from axcore.ops import current_policy, use_policy


@attrs.frozen(kw_only=True)
class SampleRequest:
    """A turn to sample.

    Args:
        tokens: What it continues.
        number: Which prompt of the run it is of.
        sample: Which of the completions of that prompt.
        turn: Which turn of that completion, from 0.
        max_tokens: Tokens sampled at most.
    """

    tokens: tuple[int, ...]
    number: int
    sample: int
    turn: int = 0
    max_tokens: int


class PolicySampler:
    """Samples completions; makes the engine when it is first asked.

    Args:
        tokenizer: The run's.
        engine: How much is sampled at once.
        seed: Decides the samples.

    Attributes:
        running: Waits for what is being sampled, all turns of it.
    """

    def __init__(self, tokenizer: Tokenizer, engine: EngineConfig, seed: int) -> None:
        self._tokenizer, self._config, self._seed = tokenizer, engine, seed
        self._engine: Engine | None = None
        self.running: Callable[[], Any] | None = None
        self._known: Policy | None = None  # whose frozen weights the engine has

    def begin(
        self,
        policy: Policy,
        state: Any,
        requests: Sequence[SampleRequest],
        *,
        sampling: Sampling,
        stream: str,
    ) -> Callable[[], list[Completion]]:
        """Begin to sample by other weights than before; what runs is finished first.

        Log-probabilities are those of the distribution that was sampled.

        Args:
            policy: The policy.
            state: Its weights.
            requests: What to sample.
            sampling: How tokens are sampled.
            stream: What the samples are for: training and evaluation draw other noise.

        Returns:
            A function that waits for the completions, and returns them.
        """
        # What is still being sampled would continue with the new weights.
        if self.running is not None:
            self.running()
        self._load_weights(policy, state)
        return self.submit(requests, sampling=sampling, stream=stream)

    def submit(
        self, requests: Sequence[SampleRequest], *, sampling: Sampling, stream: str
    ) -> Callable[[], list[Completion]]:
        """Begin to sample by the same weights as before; see `begin`."""
        assert self._engine is not None, "begin gave it weights"
        # Raw ones where they are the same, since those cost no softmax of their own.
        is_raw = sampling.is_plain and sampling.temperature in (0.0, 1.0)
        asked = [
            Request(
                prompt=one.tokens,
                max_tokens=one.max_tokens,
                sampling=sampling,
                seed=self._seed_of(one, stream),
                num_logprobs=0,
                logprobs_mode="raw_logprobs" if is_raw else "processed_logprobs",
            )
            for one in requests
        ]
        # Together, so that which calls compute them follows from the prompts, and not from how
        # fast they come: a run that resumes samples the same bits.
        streams = self._engine.submit_all(asked)
        return lambda: [one.result() for one in streams]

    def _seed_of(self, one: SampleRequest, stream: str) -> int:
        # A turn draws other noise than the one before it, and a completion of one turn the same
        # as without an environment.
        turn = (f"turn {one.turn}",) if one.turn else ()
        return sample_seed(self._seed, stream, one.number, one.sample, *turn)

    def _load_weights(self, policy: Policy, state: Any) -> None:
        if self._engine is None:
            with use_policy(policy.kernels or current_policy()):
                self._engine = Engine(policy.module, state, self._tokenizer, self._config)
        elif policy is self._known and policy.specs is not None:
            # Where only adapters train, nothing but these.
            part = self._engine.missing_weights(state, policy.specs)
            self._engine.replace_weights(part, is_partial=True)
        else:
            self._engine.replace_weights(state)
        self._known = policy
