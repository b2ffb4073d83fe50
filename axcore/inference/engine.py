"""`Engine`: continuous batching of requests to one model, in a thread of its own.

The way of a request: `submit` checks it and queues it for the engine thread; each step of
`ModelRunner` has the `Scheduler` choose rows, runs them, and `OutputProcessor` puts their tokens
into the `CompletionStream` that `submit` returned.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from jax.sharding import Mesh

from axcore.data import Tokenizer
from axcore.distributed import broadcast_object
from axcore.errors import EngineError, RequestError
from axcore.inference.adapters import Adapter, EngineAdapter, EngineAdapters, NumberedAdapter
from axcore.inference.completion import CompletionStream
from axcore.inference.config import EngineConfig
from axcore.inference.detokenizer import IncrementalDetokenizer
from axcore.inference.engine_core import build_engine
from axcore.inference.engine_stats import EngineStats
from axcore.inference.engine_thread import EngineThread
from axcore.inference.grammar import GrammarCompiler
from axcore.inference.input_batch import OnFailure, RequestState, fail_all, new_request_state
from axcore.inference.request import Draining, QueueFull, Request
from axcore.inference.speculation import DRAFT, Draft
from axcore.inference.warm_up import Progress, Stage, WarmUp, stages
from axcore.module import Module

T = TypeVar("T")


class Engine:
    """Samples completions from a model with a `logits` entry, as `CausalLM` has.

    Args:
        model: The model, as it is trained.
        state: Its state.
        tokenizer: The tokenizer that it was trained with.
        cfg: How much is served at once.
        mesh: Where weights and caches are stored; by default where the state is.
        draft: The draft model, where `cfg.speculation` is a `DraftModel`.
        on_failure: See `OnFailure`; by default all requests end with the error.
        grammars: Compiles the grammars of requests; by default one of its own does.

    Raises:
        ConfigError: The config does not fit the model, or itself.
    """

    def __init__(
        self,
        model: Module,
        state: Any,
        tokenizer: Tokenizer,
        cfg: EngineConfig = EngineConfig(),  # noqa: B008 - a frozen value
        *,
        mesh: Mesh | None = None,
        draft: Draft | None = None,
        on_failure: OnFailure | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        # Everything that can refuse the config is here, before there is a thread.
        core = build_engine(model, state, tokenizer, cfg, mesh=mesh, draft=draft)
        self.tokenizer, self.config = tokenizer, core.config
        self.max_length = core.cache_config.max_length
        self._core, self._programs, self._runner = core, core.programs, core.runner
        self._grammars = grammars or GrammarCompiler(tokenizer)
        self._waited_before = 0
        self._warm_up: WarmUp | None = None
        self._numbers = itertools.count()
        self._adapters = EngineAdapters(cfg.num_adapters)
        self._epoch = 0
        self._submitted: dict[int, RequestState] = {}
        self._num_prompt_tokens = 0
        self._is_draining = False
        self._on_failure = on_failure or fail_all
        self._thread = EngineThread(self._runner.step, has_work=self._has_work, end=self._end)
        self._changed = self._thread.changed
        if core.processes is not None and core.processes.is_first:
            core.processes.tree.when_lost = self._thread.fail

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm_up(
        self,
        progress: Progress | None = None,
        *,
        when_all: Callable[[Exception | None], None] | None = None,
        num_threads: int | None = None,
    ) -> None:
        """Compile every program that requests can need, as many at once as there are cores.

        Args:
            progress: Is called with the number of compiled programs, of all, and the name of the
                last.
            when_all: Where given, only the few programs are waited for by which any request can be
                answered; threads compile the others, half as many at once, and one of them calls
                this then, with the error if one failed. Until then calls may compute more rows than
                they need.
            num_threads: How many are compiled at once; by default as many as there are cores.
        """
        limits = self._runner.scheduler.limits
        found = stages(
            self.config,
            limits,
            self._core.buckets,
            self._core.kinds,
            encodes=self._programs.encoder is not None,
        )
        compiled = self._programs.compiled
        self._warm_up = WarmUp(
            compiled.prepare,
            self._use,
            # Without `when_all` the last stage alone: it has every program,
            # and the smaller ones before it only serve to start early.
            found if when_all else found[-1:],
            num_threads=num_threads or os.cpu_count() or 1,
        )
        # The runner must know only programs that exist
        # already, or a request would wait for a compilation.
        if when_all:
            self._use(found[0])
        self._warm_up.first(progress)
        # Programs that were compiled on purpose do not count as waited for.
        self._waited_before = compiled.num_waited_for
        if when_all:
            self._warm_up.start_others(when_all)

    @property
    def error(self) -> EngineError | None:
        """Why the engine stopped; None while no step has failed."""
        return self._thread.error

    def together(self, name: str, make: Callable[[], T]) -> T:
        """Return in all processes what process 0 makes with the engine, whose calls all run.

        Args:
            name: What it is, for errors.
            make: Submits requests and waits for them; it is called in process 0 alone. Where the
                mesh spans several processes, it returns something that JSON gives back.

        Raises:
            AxcoreError: What `make` raised, in every process.
            ProcessError: A process was lost.
        """
        processes = self._core.processes
        if processes is None:
            return make()

        def made() -> T:
            try:
                return make()
            except EngineError:
                processes.check_present()
                raise
            finally:
                self._thread.wait_until_idle()
                if self.error is None:
                    processes.pause()

        if not processes.is_first:
            self.follow()
        return broadcast_object(name, made)

    def follow(self) -> bool:
        """Run what process 0 plans, in any other process, until it pauses or closes the engine.

        Returns:
            Whether the engine will be used again.

        Raises:
            EngineError: A call failed here.
            ProcessError: A process was lost.
        """
        processes = self._core.processes
        return processes is not None and processes.run(self._programs)

    @property
    def answers(self) -> bool:
        """Whether this process takes requests; where there are several, one does."""
        return self._core.processes is None or self._core.processes.is_first

    def submit(self, request: Request) -> CompletionStream:
        """Queue a request, and return its completion at once.

        Raises:
            RequestError: It can never be answered.
            QueueFull: Too many requests wait.
            Draining: The engine takes no more.
            EngineError: The engine is closed, or a step failed.
        """
        return self._queue([self._checked(request)])[0]

    def submit_all(self, requests: Sequence[Request]) -> tuple[CompletionStream, ...]:
        """Queue all requests or none, and return their completions at once, in the same order.

        No step runs between two of them. So where the engine has nothing else to do, the batches
        of all steps follow from the requests, and from what the prefix cache holds, alone.

        Raises:
            RequestError: One can never be answered, or there are more than the queue may hold.
            QueueFull: Too many requests wait.
            Draining: The engine takes no more.
            EngineError: The engine is closed, or a step failed.
        """
        if len(requests) > self.config.max_queue:
            raise RequestError(
                f"{len(requests)} requests are submitted at once; the queue holds "
                f"{self.config.max_queue}",
                where="requests",
                hint=f"set max_queue to {len(requests)}, or submit fewer at once",
            )
        states = []
        for index, request in enumerate(requests):
            with naming_request(index):
                states.append(self._checked(request))
        return self._queue(states)

    def check_request(self, request: Request) -> None:
        """Check that a request can be answered, its grammar and its adapter apart.

        Raises:
            RequestError: Saying what in it is wrong.
        """
        self._core.request_limits.check(request)

    def take_over(self, other: RequestState) -> None:
        """Queue a request that another engine took and did not begin; return at once.

        The queue may be full, and the engine may drain: the request was taken before.

        Raises:
            RequestError: It cannot be answered here, or its adapter is not the same here.
            EngineError: The engine is closed, or a step failed.
        """
        request = other.request
        # Not refused as `submit` does: the client's request was accepted already.
        self._core.request_limits.check(request)
        state = self._new_request_state(other.completion)
        with self._changed:
            self._thread.check_open()
            state.adapter = self._adapters.find(request.adapter)
            # By content, not by name: half an answer with
            # each of two adapters is an answer of neither.
            if state.adapter.digest != other.adapter.digest:
                raise RequestError(
                    f"the adapter {request.adapter!r} was replaced while the request waited",
                    where="adapter",
                    hint="ask again",
                )
            self._add(state)

    def stats(self) -> EngineStats:
        """Return the state of the engine now."""
        # Without the lock: numbers of one moment each, for people. A
        # lock here would make metrics wait for the start of a step.
        runner, scheduler = self._runner, self._runner.scheduler
        return EngineStats(
            num_waiting=self._num_waiting(),
            num_running=scheduler.num_running,
            num_slots=self.config.max_num_seqs,
            pages_used=scheduler.pool.num_used,
            pages_total=scheduler.pool.num_pages,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_prompt_tokens=scheduler.pages.num_shared,
            enable_prefix_caching=scheduler.limits.enable_prefix_caching,
            num_preemptions=scheduler.num_preemptions,
            num_sampled_tokens=runner.output.num_sampled,
            num_draft_tokens=runner.num_draft_tokens,
            num_accepted_draft_tokens=runner.output.num_accepted_draft_tokens,
            num_steps=runner.num_steps,
            compilations_after_warm_up=self._programs.compiled.num_waited_for - self._waited_before,
            host_seconds_per_step=runner.host_seconds / max(1, runner.num_steps),
        )

    @property
    def weight_version(self) -> int:
        """The version of the weights in use; see `replace_weights`."""
        return self._runner.weight_version

    def replace_weights(
        self, state: Any, *, version: int | None = None, is_partial: bool = False
    ) -> None:
        """Replace the weights between two steps; return when the new ones are in use.

        Running requests continue with them; their keys and values in the cache remain those of the
        old weights. The prefix cache is cleared. Steps wait while array after array
        takes the place of the one before it.

        Arrays that are already stored where the engine needs them, in the type that layers read,
        are shared and not copied. A program that they are donated to later deletes them here too:
        requests are refused from then on, and running ones fail, until the next call.

        Args:
            state: On any device, or in host memory as numpy's arrays, which leaves memory on
                devices.
            version: What completions call the new weights; by default one more than before, where
                the first are 0.
            is_partial: Whether the state has only the arrays that changed, as where all others
                are frozen.

        Raises:
            ConfigError: Its arrays are of another model, or differ in type.
            ModuleError: An array has another shape.
            EngineError: The engine is closed, a step failed, or weights came in part only.
        """
        self.check_weights(state, is_partial=is_partial)

        # In the engine's thread, so between two steps: no call
        # reads half of the old and half of the new weights.
        def replace() -> None:
            self._programs.replace_weights(state, is_partial=is_partial)
            before = self._runner.weight_version
            self._runner.weight_version = before + 1 if version is None else version
            # The epoch is part of the salt of new requests' digests. Running ones keep
            # theirs, so pages of old weights are shared by nobody who began later.
            self._epoch += 1
            self._runner.scheduler.reset_prefix_cache()
            if self._runner.encoder_cache is not None:
                self._runner.encoder_cache.forget_soft_tokens()

        self._thread.do(replace)

    def weights_in_use(self) -> Any:
        """Return the model's weights as its programs read them, all of one version.

        Raises:
            EngineError: The engine is closed, or a step failed.
        """
        found: list[Any] = []
        # In the engine's thread: array after array is replaced there.
        self._thread.do(lambda: found.append(self._programs.weights.value))
        return {name: below for name, below in found[0].items() if name != DRAFT}

    def missing_weights(self, state: Any, specs: Any) -> Any:
        """Return the part of a state to give to `replace_weights` where the rest did not change.

        Args:
            state: The state.
            specs: Its specs; arrays that they mark as frozen have the numbers that the engine has.
                Those of them that a program took by donation are in the part, too.
        """
        return self._programs.weights.missing_part(state, specs)

    def check_weights(self, state: Any, *, is_partial: bool = False) -> None:
        """Check that `replace_weights` takes a state.

        Raises:
            ConfigError: Its arrays are of another model, or differ in type.
            ModuleError: An array has another shape.
        """
        self._programs.weights.check(state, is_partial=is_partial)

    def release_weights(self) -> None:
        """Drop the weights, so that only others hold them; requests are refused without them.

        Everything else stays: programs, caches, adapters. `replace_weights` brings new ones.

        Raises:
            EngineError: Requests are unfinished, or the engine is closed.
        """
        is_busy = False

        def release() -> None:
            nonlocal is_busy
            with self._changed:  # so that no request comes between the look and the release
                is_busy = bool(self._submitted or self._runner.output.requests)
                if not is_busy:
                    self._programs.weights.release()

        self._thread.do(release)
        # Raised here: in its thread, an EngineError ends the engine.
        if is_busy:
            raise EngineError(
                "requests are unfinished, which need the weights",
                hint="wait for their completions, or cancel them, before release_weights",
            )

    def add_adapter(self, name: str, adapter: Adapter) -> None:
        """Let requests choose an adapter by its name; one of other weights that has the name goes.

        Requests that there are keep the one that they were given to their end.

        Raises:
            ConfigError: There is no room for one more; a removed one keeps its own until the last
                request with it is answered. One that has the name keeps it then.
            ModuleError: It adapts layers without adapter slots, or has a larger rank.
            EngineError: The engine is closed, or a step failed.
        """
        self.set_adapter(name, self.converted(adapter))

    def converted(self, adapter: Adapter) -> EngineAdapter:
        """Return an adapter as `set_adapter` takes it.

        Raises:
            ConfigError: Its layers differ in scale, or have more than factors.
        """
        return EngineAdapter.of(adapter, self._core.cache_config)

    def set_adapter(self, name: str, adapter: EngineAdapter) -> None:
        """Do what `add_adapter` does."""
        self._programs.weights.check_present()

        def add() -> None:
            with self._changed:  # so that no request is given a number that changes its meaning
                if self._adapters.has(name, adapter.digest):
                    return
                # Numbers in use by requests that are still in the
                # inbox count too: they were chosen at `submit`.
                used = {state.adapter.number for state in self._submitted.values()}
                used |= self._runner.adapters_in_use
                number = self._adapters.free_number(name, used)
                self._programs.weights.set_adapter(number, adapter.factors)
                self._adapters.set(name, NumberedAdapter(number, adapter.digest))

        self._thread.do(add)

    def remove_adapter(self, name: str) -> None:
        """Refuse new requests with an adapter; those that there are keep it to their end.

        Raises:
            ConfigError: There is none of that name.
            EngineError: The engine is closed, or a step failed.
        """

        def remove() -> None:
            with self._changed:
                self._adapters.remove(name)

        self._thread.do(remove)

    def drain(self) -> None:
        """Refuse new requests, and return when all others are finished."""
        with self._changed:
            # Under the lock, so that no `submit` comes between the question and the answer.
            self._is_draining = True
        self._thread.wait_until_idle()

    def close(self) -> None:
        """End all requests and the engine's thread."""
        # The thread first: it may be waiting for a program that the warm-up compiles.
        self._thread.close()
        if self._warm_up is not None:
            self._warm_up.stop()
        if self._core.processes is not None:
            self._core.processes.close()

    def _checked(self, request: Request) -> RequestState:
        """Return the state of a request that can be answered, which no step has begun."""
        # Without the lock: it reads what never changes, and
        # hashing or compiling a grammar may take seconds.
        self.check_request(request)
        text = IncrementalDetokenizer(
            self.tokenizer,
            request.prompt,
            request.stop,
            request.visible_tokens,
            includes_stop=request.includes_stop,
            min_tokens=request.min_tokens,
        )
        return self._new_request_state(CompletionStream(request, text, _nothing))

    def _queue(self, states: Sequence[RequestState]) -> tuple[CompletionStream, ...]:
        if self._core.processes is not None:
            self._core.processes.check_first()
        with self._changed:
            # Open before full before draining: the first
            # that is true says best what the client can do.
            self._thread.check_open()
            # Here and not in the step that would fail by it, which would end the engine.
            self._programs.weights.check_present()
            if self._num_waiting() + len(states) > self.config.max_queue:
                raise QueueFull(f"{self._num_waiting()} requests wait already")
            if self._is_draining:
                raise Draining("the engine finishes what it has and takes no new requests")
            # Under the lock, together with the queueing: between the
            # two an adapter's number could be given to another one.
            for state in states:
                state.adapter = self._adapters.find(state.request.adapter)
            for state in states:
                self._add(state)
        return tuple(state.completion for state in states)

    def _number_inputs(self, state: RequestState) -> None:
        """Give inputs of a request the numbers by which its text has them; in the engine thread."""
        cache, inputs = self._runner.encoder_cache, state.request.inputs
        if cache is None or not inputs:
            return
        if not cache.has_room(len(inputs)):
            cache.restart()
            # Part of the salt of all that comes from now on, so that
            # no page of earlier texts is found by a number given again.
            self._epoch += 1
        numbers = cache.numbers(inputs)
        state.inputs = dict(zip(numbers, inputs, strict=True))
        state.sequence.text = cache.numbered(state.sequence.text, numbers)

    def _use(self, stage: Stage) -> None:
        self._thread.do(lambda: self._runner.use(stage))

    def _new_request_state(self, completion: CompletionStream) -> RequestState:
        return new_request_state(
            completion,
            next(self._numbers),
            grammars=self._grammars,
            speculation=self.config.speculation,
            end_ids=self.tokenizer.end_ids,
        )

    def _add(self, state: RequestState) -> None:
        """Queue a request for the engine thread; hold the lock when you call it."""
        sequence = state.sequence

        def add() -> None:
            self._num_prompt_tokens += len(state.request.prompt)
            self._number_inputs(state)
            # Here and not in `submit`: weights may be replaced between
            # the two, and the pages are computed by those of now.
            sequence.salt = f"{self._epoch}/{state.adapter.digest}".encode()
            self._runner.add(state)
            # In the same step as it enters the runner, so that
            # it is always in one of both, and `_end` finds it.
            del self._submitted[sequence.number]

        self._submitted[sequence.number] = state
        self._thread.send(add)
        # After `send`: a cancellation that comes at once finds its request in the inbox before it.
        state.completion.take_over(lambda: self._cancel(state))

    def _cancel(self, state: RequestState) -> None:
        with self._changed:
            if not (self._thread.is_closed or state.sequence.is_over):
                self._thread.send(lambda: self._runner.cancel(state))

    def _num_waiting(self) -> int:
        return len(self._submitted) + self._runner.scheduler.num_waiting

    def _has_work(self) -> bool:
        return bool(self._submitted or self._runner.has_work)

    def _end(self, error: EngineError) -> None:
        """End all requests, or have `on_failure` do so."""
        with self._changed:
            submitted, self._submitted = self._submitted, {}
            # The runner's states and those on their way to it;
            # the numbers keep a request from being ended twice.
            states = {state.sequence.number: state for state in self._runner.give_up()} | submitted
        # Closed on purpose, there is nothing to move elsewhere.
        end = fail_all if self.error is None else self._on_failure
        end(error, tuple(states.values()))


@contextmanager
def naming_request(index: int) -> Iterator[None]:
    """Have a RequestError say which of several requests it is about."""
    try:
        yield
    except RequestError as error:
        where = f"requests[{index}].{error.where}"
        raise RequestError(error.what, where=where, hint=error.hint) from error


def _nothing() -> None:
    """Cancel nothing: no engine has taken the request yet."""
