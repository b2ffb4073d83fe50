"""`LaunchedCall`: a call that is under way, and what its results are for those who asked."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from axcore.inference.answer import TokenLogprobs
from axcore.inference.device_calls import Drawn
from axcore.inference.step_plan import Call
from axcore.inference.task import Task


class LaunchedCall(NamedTuple):
    """A call that is under way.

    Args:
        call: The rows.
        tasks: Theirs.
        drawn: What it draws, if anything.
        scores: Of a prompt's tokens, where they are wanted; see `Programs.score`.
        counts: How many of the tokens belong to each answer, where guesses decide.
    """

    call: Call
    tasks: list[Task | None]
    drawn: Drawn | None
    scores: Array | None
    counts: Array | None = None

    def keep_scores(self, values: np.ndarray) -> None:
        """Keeps the log-probabilities of tokens of a prompt, `[T, 3]`, for its answer."""
        task, call = self.tasks[0], self.call
        assert task is not None
        assert task.scores is not None
        first = int(call.starts[0])
        end = min(first + int(call.sizes[0]), len(task.scores))
        if first < end:
            task.scores[first:end] = values[: end - first]
        if end == len(task.scores):
            task.answer.prompt_logprobs = (None, *task.scores[:, 0].tolist())
            likeliest = ((int(token), logprob) for _, logprob, token in task.scores.tolist())
            task.answer.prompt_likeliest = (None, *likeliest)

    def logprobs(self) -> TokenLogprobs:
        """Returns log-probabilities `[rows, count]` and `[rows, count, n]`."""
        assert self.drawn is not None
        values = (np.asarray(value) for value in self.drawn.logprobs)
        return TokenLogprobs(*(value.swapaxes(0, 1) for value in values))
