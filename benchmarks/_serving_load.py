"""What every rival of `serving.py` is asked for, and how it answers; needs numpy only.

A rival is a process that reads a task from each line of its input, as JSON, and answers with a line
of JSON: what it measured, or the error that it ended in.
"""

import json
import os
import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np

MODELS: dict[str, dict[str, int]] = {
    "32M": {
        "vocab_size": 8192,
        "dim": 512,
        "num_layers": 8,
        "num_heads": 8,
        "hidden_dim": 1280,
    },
    "125M": {
        "vocab_size": 24576,
        "dim": 768,
        "num_layers": 12,
        "num_heads": 12,
        "hidden_dim": 2048,
    },
}
"""Sizes of the models, with a head of their own."""
CONTEXT = 1024
PROMPT, LONG_PROMPT = 128, 512
"""Tokens before those whose time is taken, and of the prompt whose answer is waited for."""

NUM_REQUESTS, REQUESTS_PER_S = 32, 64.0
"""How many arrive, and how many in a second on average: several times as many as any rival serves,
so that what is measured is how fast they are served and not how fast they come."""


class Asked(NamedTuple):
    """A request of the load.

    Args:
        arrival_s: When it comes, from the beginning.
        prompt: Its tokens.
        num_tokens: How many it asks for.
    """

    arrival_s: float
    prompt: list[int]
    num_tokens: int


def prompts(batch: int, length: int, vocab_size: int, *, seed: int = 0) -> list[list[int]]:
    """Return prompts of random tokens; no rival can have seen the beginning of one before."""
    drawn = np.random.default_rng((seed, batch, length)).integers(1, vocab_size, (batch, length))
    return [row.tolist() for row in drawn]


def arrivals(vocab_size: int, *, count: int = NUM_REQUESTS, seed: int = 0) -> list[Asked]:
    """Return requests with Poisson arrivals, whose lengths are log-normal as ShareGPT's are.

    Prompts and answers have a median of 64 tokens, with a long tail; both are cut off so that
    they fit the context of the model.
    """
    draw = np.random.default_rng(seed)
    times = np.cumsum(draw.exponential(1 / REQUESTS_PER_S, count))
    asked = np.clip(np.exp(draw.normal(np.log(64), 1.0, count)), 4, 512).astype(int)
    answered = np.clip(np.exp(draw.normal(np.log(64), 0.7, count)), 8, 256).astype(int)
    return [
        Asked(float(at), draw.integers(1, vocab_size, size).tolist(), int(num_tokens))
        for at, size, num_tokens in zip(times, asked, answered, strict=True)
    ]


def served(began: float, asked: list[Asked], tokens_at: list[list[float]]) -> dict[str, float]:
    """Return what a load took, from when each token of each answer came, by `perf_counter`."""
    first = [at[0] - began - one.arrival_s for one, at in zip(asked, tokens_at, strict=True)]
    num_tokens = sum(map(len, tokens_at))
    missing = sum(one.num_tokens for one in asked) - num_tokens
    if missing:
        raise RuntimeError(f"{missing} tokens were asked for and did not come")
    seconds = max(at[-1] for at in tokens_at) - began
    return {
        "tokens_per_s": num_tokens / seconds,
        "p50_first_s": float(np.percentile(first, 50)),
        "p99_first_s": float(np.percentile(first, 99)),
        "seconds": seconds,
        "num_tokens": num_tokens,
    }


class Watch:
    """Seconds of the wall clock and of processors, of all threads."""

    wall_s = processor_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add what passes inside."""
        began, used = time.perf_counter(), time.process_time()
        yield
        self.wall_s += time.perf_counter() - began
        self.processor_s += time.process_time() - used

    def figures(self, count: int = 1) -> dict[str, float]:
        """Return milliseconds by `count`."""
        return {
            "ms": self.wall_s / count * 1e3,
            "processor_ms": self.processor_s / count * 1e3,
        }


def answer_tasks(
    tasks: Mapping[str, Callable[..., Mapping[str, Any]]],
    *,
    packages: tuple[str, ...],
    setting: Mapping[str, Any],
) -> None:
    """Answer tasks until the input ends.

    Args:
        tasks: By name; each takes the other values of a line as keywords.
        packages: Whose versions it says first.
        setting: How the rival was set up, which it says first as well.
    """
    versions = {"python": platform.python_version(), **{name: version(name) for name in packages}}
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    _say(out, versions=versions, setting=dict(setting))
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            found = dict(tasks[asked.pop("task")](**asked))
        except Exception as error:  # a rival that fails at one task may do the next
            traceback.print_exc()
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        _say(out, **found, peak_mib=round(peak_mib))


def _say(out: Any, **what: Any) -> None:
    print(json.dumps(what), file=out, flush=True)
