"""`LaunchedCall`: a call that is under way, and what its results are for those who asked."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array

from axcore.inference.answer import TokenLogprobs
from axcore.inference.device_calls import Drawn
from axcore.inference.drawing import LogProbs
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
    scores: LogProbs | None
    counts: Array | None = None

    def keep_scores(self, values: TokenLogprobs) -> None:
        """Keeps the log-probabilities of tokens of a prompt, `[T]` and `[T, n]`, for its answer."""
        task, call = self.tasks[0], self.call
        assert task is not None
        count, first = len(task.request.prompt) - 1, int(call.starts[0])
        most = max(1, task.request.num_logprobs or 0)
        values = TokenLogprobs(values[0], values[1][:, :most], values[2][:, :most])
        if task.scores is None:
            task.scores = TokenLogprobs(
                *(np.zeros((count, *one.shape[1:]), one.dtype) for one in values)
            )
        end = min(first + int(call.sizes[0]), count)
        if first < end:
            for kept, new in zip(task.scores, values, strict=True):
                kept[first:end] = new[: end - first]
        if end == count:
            drawn, *likeliest = (one.tolist() for one in task.scores)
            task.answer.prompt_logprobs = (None, *drawn)
            pairs = (tuple(zip(*one, strict=True)) for one in zip(*likeliest, strict=True))
            task.answer.prompt_likeliest = (None, *pairs)

    def logprobs(self) -> TokenLogprobs:
        """Returns log-probabilities `[rows, count]` and `[rows, count, n]`."""
        assert self.drawn is not None
        values = (np.asarray(value) for value in self.drawn.logprobs)
        return TokenLogprobs(*(value.swapaxes(0, 1) for value in values))
