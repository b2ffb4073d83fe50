"""`ServerMetrics`: what `/metrics` says to Prometheus."""

import time
from collections.abc import Iterator
from typing import Any

import attrs
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from axcore.inference import CompletionDelta
from axcore.serving.served import Served
from axcore.serving.served_model import ServedModel

# From a cached prompt on an accelerator to a long
# answer on a host. Prometheus's default ends at 10 s.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


_CALLS = "Calls of the model that are not steps of an engine"


@attrs.define
class RequestStats:
    """What is measured of one request.

    Args:
        began: When it came, on the monotonic clock.
        first_token_s: Seconds to its first token; None before.
        last_token_s: Seconds to its newest token; None before.
        num_prompt_tokens: Tokens of its prompts.
        num_cached_tokens: Of those, tokens that another request had computed.
        num_tokens: Tokens of its answers so far.
        finish_reasons: Of each answer that ended.
        is_abandoned: Whether the client went away.
    """

    began: float = attrs.field(factory=time.monotonic)
    first_token_s: float | None = None
    last_token_s: float | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_tokens: int = 0
    finish_reasons: list[str] = attrs.field(factory=list)
    is_abandoned: bool = False

    def add(self, delta: CompletionDelta) -> None:
        """Count a piece of an answer."""
        if delta.sampled:
            now = time.monotonic() - self.began
            # A piece without a token, such as one that only ends a text, is not a first token.
            self.first_token_s = now if self.first_token_s is None else self.first_token_s
            self.last_token_s = now
            self.num_tokens += len(delta.sampled)
        if delta.finish_reason is not None:
            self.finish_reasons.append(delta.finish_reason)


class _EngineCollector(Collector):
    """Reads the stats of a model's engine each time that somebody asks."""

    def __init__(self, served: ServedModel) -> None:
        # Asked for at each scrape, so that steps pay nothing for being measured.
        self._served = served

    def collect(self) -> Iterator[Metric]:
        """Yield each figure."""
        stats = self._served.engine.stats()
        for name, text, value in (
            ("requests_waiting", "Requests that wait for a slot", stats.num_waiting),
            ("requests_running", "Requests whose answers are sampled", stats.num_running),
            ("slots", "Answers that can be sampled at once", stats.num_slots),
            ("cache_pages", "Pages of the cache", stats.pages_total),
            ("cache_pages_used", "Pages that requests hold", stats.pages_used),
            ("replicas", "Copies of the weights that answer requests", stats.num_replicas),
            ("failed_replicas", "Those that answer no more", stats.num_failed_replicas),
            ("checkpoint_step", "Step of the weights that answer", self._served.step or 0),
        ):
            yield GaugeMetricFamily(f"axcore_{name}", text, value=value)
        for name, text, value in (
            (
                "prefix_hit_tokens",
                "Tokens of prompts that another request had computed",
                stats.num_cached_prompt_tokens,
            ),
            ("preemptions", "Answers preempted for others", stats.num_preemptions),
            ("sampled_tokens", "Tokens sampled by the engine", stats.num_sampled_tokens),
            ("steps", "Steps of the engine", stats.num_steps),
            ("moved_requests", "Requests moved from a failed replica", stats.num_moved),
            ("lost_requests", "Requests that failed with their replica", stats.num_lost),
            ("compilations", "Programs compiled after the start", stats.compilations_after_warm_up),
            ("calls", _CALLS, self._served.queue.num_calls),
        ):
            yield CounterMetricFamily(f"axcore_{name}", text, value=value)


class _QueueCollector(Collector):
    """Reads the stats of a model without an engine each time that somebody asks."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def collect(self) -> Iterator[Metric]:
        """Yield each figure."""
        queue = self._served.queue
        for name, text, value in (
            ("requests_waiting", "Requests that wait for a call", queue.num_waiting),
            ("checkpoint_step", "Step of the weights that answer", self._served.step or 0),
        ):
            yield GaugeMetricFamily(f"axcore_{name}", text, value=value)
        yield CounterMetricFamily("axcore_calls", _CALLS, value=queue.num_calls)


class ServerMetrics:
    """Counts and times requests.

    Args:
        served: Whose stats are shown with them.
    """

    def __init__(self, served: Served) -> None:
        # Its own registry: the default one is global, and two
        # servers in one process, as in tests, would collide.
        self.registry = CollectorRegistry()
        if isinstance(served, ServedModel):
            self.registry.register(_EngineCollector(served))
        else:
            self.registry.register(_QueueCollector(served))
        kept: Any = {"registry": self.registry, "namespace": "axcore"}
        self.requests = Counter("requests", "Requests", ["path", "status"], **kept)
        self.prompt_tokens = Counter("prompt_tokens", "Tokens of prompts", **kept)
        self.completion_tokens = Counter("completion_tokens", "Tokens of answers", **kept)
        self.abandoned = Counter("abandoned", "Requests whose client went away", **kept)
        self.in_flight = Gauge("requests_in_flight", "Requests being answered", **kept)
        timed: Any = {**kept, "buckets": _SECONDS}
        self.first_token = Histogram(
            "time_to_first_token_seconds", "From a request to its first token", **timed
        )
        self.token_time = Histogram(
            "time_per_token_seconds", "Between tokens of a request, on average", **timed
        )
        self.duration = Histogram(
            "request_seconds", "From a request with a prompt to its end, however it ends", **timed
        )

    def add(self, path: str, status: int, stats: RequestStats, seconds: float) -> None:
        """Count a request that ended."""
        self.requests.labels(path, str(status)).inc()
        self.prompt_tokens.inc(stats.num_prompt_tokens)
        self.completion_tokens.inc(stats.num_tokens)
        self.abandoned.inc(int(stats.is_abandoned))
        # `/health` and refused requests have no prompt, and would pull the median to zero.
        if stats.num_prompt_tokens:
            self.duration.observe(seconds)
        if stats.first_token_s is None or stats.last_token_s is None:
            return
        self.first_token.observe(stats.first_token_s)
        # Without the first token, whose time is that of the prompt.
        if stats.num_tokens > 1:
            between = stats.last_token_s - stats.first_token_s
            self.token_time.observe(between / (stats.num_tokens - 1))

    def text(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return generate_latest(self.registry)
