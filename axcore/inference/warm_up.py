"""`WarmUp`: compiles an engine's programs before requests need them, in stages.

The first stage is the few programs by which any request can be answered, though not as fast as by
all. What an engine calls is changed when all programs of a stage are compiled, never before.
"""

import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs

from axcore.inference.config import BatchBuckets, EngineConfig
from axcore.inference.request import SamplerKind
from axcore.inference.schedule import SchedulerConfig

Progress = Callable[[int, int, str], None]
"""Is called with the number of compiled programs, of all, and the name of the last."""


@attrs.frozen
class Stage:
    """Programs that an engine can work with.

    Args:
        buckets: Of its calls.
        kinds: What they can sample, the cheapest first.
        keys: Of the programs; see `Programs`.
    """

    buckets: BatchBuckets
    kinds: tuple[SamplerKind, ...]
    keys: tuple[Hashable, ...]


def _growing(
    buckets: BatchBuckets, kinds: tuple[SamplerKind, ...]
) -> list[tuple[BatchBuckets, tuple[SamplerKind, ...]]]:
    """Return buckets and kinds of stages: those of few programs first, all of them last.

    The first computes all rows in every call; the second has programs for the fewest rows, too.
    """
    # With one program for all rows any request can be answered at once, only slower than it must.
    largest, smallest = buckets.decode_buckets[-1], buckets.decode_buckets[0]
    first = attrs.evolve(
        buckets,
        decode_buckets=(largest,),
        chunk_lengths=(buckets.alone_length,),
        prefill_buckets=((1,),),
        # Reading by the program that scores: one that is needed anyway.
        prefills_by_score=True,
    )
    second = attrs.evolve(first, decode_buckets=tuple(sorted({smallest, largest})))
    stages = [(first, kinds[-1:]), (second, kinds), (buckets, kinds)]
    return [stage for place, stage in enumerate(stages) if stage not in stages[:place]]


def stages(
    cfg: EngineConfig,
    limits: SchedulerConfig,
    buckets: BatchBuckets,
    kinds: tuple[SamplerKind, ...],
    *,
    encodes: bool = False,
) -> list[Stage]:
    """Return stages in which programs can be compiled; the last one has all.

    Args:
        cfg: Of the engine.
        limits: Of its schedules.
        buckets: Of its calls.
        kinds: What programs can sample, the cheapest first.
        encodes: Whether the model has an encoder of other inputs than text.
    """
    found = [] if cfg.fixed_shapes else _growing(buckets, kinds)
    # In all of them: any request may have such inputs.
    encoding: list[tuple[Any, ...]] = [("encode",)] if encodes else []
    return [
        Stage(fewer, some, (*encoding, *program_keys(cfg, limits, fewer, some)))
        for fewer, some in found or [(buckets, kinds)]
    ]


def program_keys(
    cfg: EngineConfig,
    limits: SchedulerConfig,
    buckets: BatchBuckets,
    kinds: tuple[SamplerKind, ...],
) -> list[tuple[Any, ...]]:
    """Return the keys of all programs that requests can need; see `Programs`.

    Those that take longest to compile come first: then no core waits for the last one.
    """
    keys: list[tuple[Any, ...]] = []
    if limits.num_decode_steps > 1:
        name = "verify_draft_tokens" if cfg.speculation else "multi_step_decode"
        keys += [
            (name, size, limits.num_decode_steps, kind)
            for size in buckets.decode_buckets
            for kind in kinds
        ]
    keys.append(("score_prompt", buckets.alone_length))
    keys += [
        ("prefill", size, length)
        for length, sizes in zip(buckets.chunk_lengths, buckets.prefill_buckets, strict=True)
        for size in sizes
        if not buckets.prefills_by_score
    ]
    keys += [("decode", size) for size in buckets.decode_buckets]
    drawing = {*buckets.decode_buckets, *itertools.chain.from_iterable(buckets.prefill_buckets)}
    keys += [("sample", size, kind) for size in sorted(drawing) for kind in kinds]
    if limits.enable_prefix_caching:
        keys.append(("copy_page",))
        reading = {size for sizes in buckets.prefill_buckets for size in sizes}
        keys += [("take_row", size) for size in sorted(reading - {1})]
    return [*keys, ("start_history", limits.max_length)]


class WarmUp:
    """Compiles stages one after the other.

    Args:
        prepare: Compiles the program of a key, in any thread.
        use: Lets the engine work with a stage, whose programs are compiled.
        stages: The first one is to be used already.
        num_threads: How many programs of the first are compiled at once. Half as many of the others
            are, whose compiling takes turns with requests.
    """

    def __init__(
        self,
        prepare: Callable[[Hashable], Any],
        use: Callable[[Stage], None],
        stages: Sequence[Stage],
        *,
        num_threads: int,
    ) -> None:
        self._prepare, self._use = prepare, use
        self._num_threads = num_threads
        self._stages = tuple(stages)
        self._is_stopped = False
        self._thread: threading.Thread | None = None

    def first(self, progress: Progress | None = None) -> None:
        """Compile the first stage."""
        with concurrent.futures.ThreadPoolExecutor(self._num_threads) as pool:
            self._compile(pool, self._stages[0].keys, progress)

    def start_others(self, when_done: Callable[[Exception | None], None]) -> None:
        """Compile the other stages in threads.

        Args:
            when_done: Is called by a thread when all is compiled, or with what it failed by; the
                engine stays with the last stage that was. Not called after `stop`.
        """
        name = "axcore-warm-up"
        self._thread = threading.Thread(target=self._others, args=(when_done,), name=name)
        # A daemon: a program of minutes must not keep a server from ending.
        self._thread.daemon = True
        self._thread.start()

    def stop(self) -> None:
        """End the threads, after the programs that they compile."""
        # A plain bool: it is set once, and read between two programs.
        self._is_stopped = True
        # `when_done` may close the engine, in this very thread.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _others(self, when_done: Callable[[Exception | None], None]) -> None:
        try:
            # Half of the cores, as the engine already answers.
            with concurrent.futures.ThreadPoolExecutor(max(1, self._num_threads // 2)) as pool:
                for stage in self._stages[1:]:
                    self._compile(pool, stage.keys)
                    # After a stop there is nobody to use them.
                    if self._is_stopped:
                        return
                    # Only when all of the stage are there: the scheduler
                    # chooses among sizes, and each must exist.
                    self._use(stage)
        except Exception as error:  # the engine answers without these programs
            failure: Exception | None = error
        else:
            failure = None
        # The error of a stop is not a failure.
        if not self._is_stopped:
            when_done(failure)

    def _compile(
        self,
        pool: concurrent.futures.Executor,
        keys: Sequence[Hashable],
        progress: Progress | None = None,
    ) -> None:
        """Return when programs are compiled; one that fails ends the others that did not begin."""
        futures = {pool.submit(self._prepare_one, key): key for key in keys}
        try:
            for done, future in enumerate(concurrent.futures.as_completed(futures), start=1):
                future.result()
                if progress is not None:
                    progress(done, len(keys), _text(futures[future]))
        finally:
            # After a failure the ones that did not begin are
            # of no use; those that run end by themselves.
            for future in futures:
                future.cancel()

    def _prepare_one(self, key: Hashable) -> None:
        if not self._is_stopped:
            self._prepare(key)


def _text(key: Any) -> str:
    return " ".join(map(str, key))
