"""`Engine`: answers many requests at once, in a thread of its own."""

import concurrent.futures
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from axcore.config import evolve
from axcore.data import Tokenizer
from axcore.errors import EngineError
from axcore.inference.adapters import Adapter
from axcore.inference.answer import Answer
from axcore.inference.answer_text import AnswerText
from axcore.inference.call_shapes import call_shapes
from axcore.inference.config import EngineConfig
from axcore.inference.drawing import packed_mask
from axcore.inference.engine_adapters import EngineAdapter, EngineAdapters, NumberedAdapter
from axcore.inference.engine_checks import Accepted, check_draft, check_speculation
from axcore.inference.engine_room import (
    schedule_limits,
    served_model,
    serving_room,
    stages,
)
from axcore.inference.engine_stats import EngineStats
from axcore.inference.grammar import GrammarCompiler
from axcore.inference.programs import Programs
from axcore.inference.request import Draining, QueueFull, Request
from axcore.inference.scheduler import Scheduler
from axcore.inference.speculation import Draft
from axcore.inference.step_plan import Job
from axcore.inference.step_runner import StepRunner, Task
from axcore.inference.warm_up import Progress, Stage, WarmUp
from axcore.module import Module

IDLE_S = 1.0
"""Seconds after which a thread without work ends; the next request starts another. So an engine
that nobody holds any more is freed."""


class Engine:
    """Draws answers from a model with a `logits` entry, as `CausalLM` has.

    Args:
        model: The model, as it is trained.
        state: Its state.
        tokenizer: The tokenizer that it was trained with.
        cfg: How much is served at once.
        draft: Guesses tokens, where `cfg.speculation` is a `DraftModel`.

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
        draft: Draft | None = None,
    ) -> None:
        check_draft(cfg, draft, tokenizer)
        self.tokenizer = tokenizer
        self._shapes = call_shapes(cfg)
        served, room = served_model(model, state, cfg, serving_room(cfg), draft=draft)
        check_speculation(cfg, keeps_pages_only=served.keeps_pages_only, draft=draft)
        limits = schedule_limits(cfg, room, self._shapes, keeps_pages_only=served.keeps_pages_only)
        self.max_length = room.max_length
        self._room = room
        self.config = evolve(cfg, num_pages=limits.num_pages)
        self._programs = Programs(
            served,
            pages_per_row=-(-limits.max_length // limits.page_size),
            max_length=limits.max_length,
            allowed=allowed_tokens(model, tokenizer),
        )
        self._kinds = cfg.draw_kinds[-1:] if cfg.fixed_shapes else cfg.draw_kinds
        self._runner = StepRunner(
            self._programs,
            Scheduler(limits),
            self._shapes,
            end_ids=tuple(tokenizer.end_ids),
            kinds=self._kinds,
            guesses=cfg.speculation is not None,
        )
        self._accepted = Accepted(
            num_tokens=self._programs.vocab_size,
            num_text_tokens=tokenizer.vocab_size,
            max_length=limits.max_length,
            page_size=limits.page_size,
            num_pages=limits.num_pages,
            kinds=self._kinds,
            draws_one_by_one=not cfg.fixed_shapes,
        )
        self._grammars = GrammarCompiler(tokenizer)
        self._waited_before = 0
        self._warm_up: WarmUp | None = None
        self._numbers = itertools.count()
        self._adapters = EngineAdapters(cfg.num_adapters)
        self._changed = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._epoch = 0
        self._submitted: dict[int, Task] = {}
        self._num_prompt_tokens = 0
        self._is_draining = False
        self._is_closed = False
        self._error: EngineError | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm_up(
        self,
        progress: Progress | None = None,
        *,
        when_all: Callable[[Exception | None], None] | None = None,
    ) -> None:
        """Compiles every program that requests can need, as many at once as there are cores.

        Args:
            progress: Is called with the number of compiled programs, of all, and the name of the
                last.
            when_all: Where given, only the few programs are waited for by which any request can be
                answered; a thread compiles the others, and calls this then, with the error if it
                failed. Until then calls may compute more rows than they need.
        """
        limits = self._runner.scheduler.limits
        found = stages(self.config, limits, self._shapes, self._kinds)
        compiled = self._programs.compiled
        self._warm_up = WarmUp(compiled.prepare, self._use, found if when_all else found[-1:])
        if when_all:
            self._use(found[0])
        self._warm_up.first(progress)
        self._waited_before = compiled.num_waited_for
        if when_all:
            self._warm_up.start_others(when_all)

    @property
    def error(self) -> EngineError | None:
        """Why the engine answers nothing any more; None while no step has failed."""
        return self._error

    def submit(self, request: Request) -> Answer:
        """Takes a request; returns at once.

        Raises:
            RequestError: It can never be answered.
            QueueFull: Too many requests wait.
            Draining: The engine takes no more.
            EngineError: The engine is closed, or a step failed.
        """
        self._accepted.check(request)
        text = AnswerText(self.tokenizer, request.prompt, request.stop)
        answer = Answer(request, text, lambda: self._cancel(task))
        job = Job(
            number=next(self._numbers),
            priority=request.priority,
            text=np.asarray(request.prompt, np.int32),
            num_prompt=len(request.prompt),
            limit=len(request.prompt) + request.max_tokens,
            one_by_one=request.grammar is not None,
            reads_alone=request.prompt_logprobs,
        )
        matcher = None if request.grammar is None else self._grammars.matcher(request.grammar)
        scores = (
            np.zeros((len(request.prompt) - 1, 3), np.float32) if request.prompt_logprobs else None
        )
        guesses = self.config.speculation
        index = guesses.index(request.prompt) if guesses else None

        def add() -> None:
            self._num_prompt_tokens += len(request.prompt)
            job.salt = f"{self._epoch}/{salt}".encode()
            self._runner.add(task)
            del self._submitted[job.number]

        with self._changed:
            self._check_open()
            if self._num_waiting() >= self.config.max_queue:
                raise QueueFull(f"{self.config.max_queue} requests wait already")
            if self._is_draining:
                raise Draining("the engine finishes what it has and takes no new requests")
            adapter, salt = self._adapters.find(request.adapter)
            task = Task(request, answer, job, matcher, scores, index, adapter)
            self._submitted[job.number] = task
            self._send(add)
        return answer

    def stats(self) -> EngineStats:
        """Returns what the engine does now."""
        runner, scheduler = self._runner, self._runner.scheduler
        return EngineStats(
            num_waiting=self._num_waiting(),
            num_running=scheduler.num_running,
            num_slots=self.config.max_rows,
            pages_used=scheduler.pool.num_used,
            pages_total=scheduler.pool.num_pages,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_prompt_tokens=scheduler.pages.num_shared,
            shares_prefixes=scheduler.limits.shares_prefixes,
            num_preemptions=scheduler.num_preemptions,
            num_drawn=runner.num_drawn,
            num_guesses=runner.num_guesses,
            num_right_guesses=runner.num_right_guesses,
            num_steps=runner.num_steps,
            compilations_after_warm_up=self._programs.compiled.num_waited_for - self._waited_before,
            host_seconds_per_step=runner.host_seconds / max(1, runner.num_steps),
        )

    def replace_weights(self, state: Any) -> None:
        """Takes over another state of the model between two steps; returns when it is in use.

        Answers that are being drawn continue with it: what caches hold of their texts remains. No
        new request finds a prefix that the old weights computed.

        Raises:
            ConfigError: Its arrays are of another type, or lie elsewhere.
            ModuleError: It is not of this model: an array is missing, or has another shape.
            EngineError: The engine is closed, or a step failed.
        """
        weights = self._programs.weights.converted(state)

        def replace() -> None:
            self._programs.weights.replace(weights)
            self._epoch += 1
            self._runner.scheduler.forget_prefixes()

        self._do(replace)

    def add_adapter(self, name: str, adapter: Adapter) -> None:
        """Lets requests choose an adapter by its name; one of other weights that has the name goes.

        Requests that there are keep the one that they were given to their end.

        Raises:
            ConfigError: There is no room for one more; a removed one keeps its own until the last
                request with it is answered. One that has the name keeps it then.
            ModuleError: It corrects layers that have no room, or has a larger rank.
            EngineError: The engine is closed, or a step failed.
        """
        self.set_adapter(name, self.converted(adapter))

    def converted(self, adapter: Adapter) -> EngineAdapter:
        """Returns an adapter as `set_adapter` takes it.

        Raises:
            ConfigError: Its layers differ in scale, or have more than factors.
        """
        return EngineAdapter.of(adapter, self._room)

    def set_adapter(self, name: str, adapter: EngineAdapter) -> None:
        """Does what `add_adapter` does."""

        def add() -> None:
            with self._changed:  # so that no request is given a number that changes its meaning
                if self._adapters.has(name, adapter.digest):
                    return
                used = {task.adapter for task in self._submitted.values()}
                used |= self._runner.adapters_in_use
                number = self._adapters.free_number(name, used)
                self._programs.weights.set_adapter(number, adapter.factors)
                self._adapters.set(name, NumberedAdapter(number, adapter.digest))

        self._do(add)

    def remove_adapter(self, name: str) -> None:
        """Refuses new requests with an adapter; those that there are keep it to their end.

        Raises:
            ConfigError: There is none of that name.
            EngineError: The engine is closed, or a step failed.
        """

        def remove() -> None:
            with self._changed:
                self._adapters.remove(name)

        self._do(remove)

    def drain(self) -> None:
        """Refuses new requests, and returns when those that there are have been answered."""
        with self._changed:
            self._is_draining = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_idle() or self._is_closed)

    def close(self) -> None:
        """Ends all answers and the engine's thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if self._warm_up is not None:
            self._warm_up.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _use(self, stage: Stage) -> None:
        self._do(lambda: self._runner.use(stage))

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise EngineError("the engine is closed")

    def _send(self, command: Callable[[], None]) -> None:
        """Lets the engine's thread do something between two steps; call it with the lock."""
        self._inbox.append(command)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="axcore-engine", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _do(self, command: Callable[[], None]) -> None:
        """Lets the engine's thread do something, and waits until it is done."""
        future: concurrent.futures.Future[None] = concurrent.futures.Future()

        def run() -> None:
            try:
                command()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(None)
            with self._changed:
                self._changed.notify_all()

        with self._changed:
            self._check_open()
            self._send(run)
            self._changed.wait_for(lambda: future.done() or self._is_closed)
            if not future.done():
                self._check_open()
        future.result()

    def _cancel(self, task: Task) -> None:
        with self._changed:
            if not (self._is_closed or task.job.is_over):
                self._send(lambda: self._runner.cancel(task))

    def _num_waiting(self) -> int:
        return len(self._submitted) + self._runner.scheduler.num_waiting

    def _is_idle(self) -> bool:
        return not (self._inbox or self._submitted or self._runner.has_work)

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            if self._is_closed:
                self._end(EngineError("the engine was closed"))
        except Exception as error:  # whatever it is, nobody may wait for ever
            failed = EngineError(f"a step of the engine failed: {error!r}")
            failed.__cause__ = error
            self._end(failed)

    def _turn(self) -> bool:
        """Does what was asked for, and a step; returns whether the thread is needed longer."""
        with self._changed:
            if self._is_idle():
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed or not self._is_idle(), IDLE_S)
            if self._is_idle() and not self._is_closed:
                self._thread = None
                return False
            commands, self._inbox = self._inbox, deque()
        if self._is_closed:
            return False
        for command in commands:
            command()
        self._runner.step()
        return True

    def _end(self, error: EngineError) -> None:
        with self._changed:
            if not self._is_closed:
                self._error = error
            self._is_closed = True
            submitted, self._submitted = self._submitted, {}
            self._runner.fail_all(error)
            self._changed.notify_all()
        for task in submitted.values():
            task.answer.fail(error)


def allowed_tokens(model: Any, tokenizer: Tokenizer) -> np.ndarray:
    """Returns bits of the logits that are of tokens that text may have, or of its end."""
    allowed = np.zeros(model.config.vocab_size, bool)
    allowed[: tokenizer.vocab_size] = True
    for token in (tokenizer.bos_id, tokenizer.pad_id):
        if token is not None and token not in tokenizer.end_ids:
            allowed[token] = False
    return packed_mask(allowed[None])
