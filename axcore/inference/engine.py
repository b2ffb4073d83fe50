"""`Engine`: answers many requests at once, in a thread of its own."""

import concurrent.futures
import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Self

import attrs
import numpy as np

from axcore.config import evolve
from axcore.data import Tokenizer
from axcore.errors import ConfigError
from axcore.inference.answer import Answer
from axcore.inference.answer_text import AnswerText
from axcore.inference.cached_model import CachedModel
from axcore.inference.call_shapes import call_shapes
from axcore.inference.config import EngineConfig
from axcore.inference.drawing import packed_mask
from axcore.inference.grammar import GrammarCompiler
from axcore.inference.programs import MAX_LOGPROBS, Programs
from axcore.inference.request import Draining, EngineError, QueueFull, Request, RequestError
from axcore.inference.scheduler import Scheduler
from axcore.inference.speculation import NGramIndex
from axcore.inference.step_plan import Job, Limits
from axcore.inference.step_runner import StepRunner, Task, kind_index
from axcore.layers import PageRoom, ServingRoom
from axcore.modifiers import NAMED_WEIGHTS
from axcore.module import Module

IDLE_S = 1.0
"""Seconds after which a thread without work ends; the next request starts another. So an engine
that nobody holds any more is freed."""


@attrs.frozen
class EngineStats:
    """What an engine does at one moment, and did since it was made.

    Args:
        num_waiting: Requests that wait for a slot.
        num_running: Requests that have one.
        num_slots: Slots there are.
        pages_used: Pages that requests hold.
        pages_total: Pages there are.
        num_prompt_tokens: Tokens of all prompts.
        num_cached_prompt_tokens: Those of them that another request had computed.
        shares_prefixes: Whether prompts that begin alike are computed once.
        num_preemptions: How often a request lost its pages and was read again.
        num_drawn: Tokens drawn.
        num_guesses: Tokens guessed ahead.
        num_right_guesses: Those of them that were drawn.
        num_steps: Steps run.
        compilations_after_warm_up: Programs compiled while requests waited for them.
        host_seconds_per_step: Time of a step that is the engine's own, not the device's.
    """

    num_waiting: int
    num_running: int
    num_slots: int
    pages_used: int
    pages_total: int
    num_prompt_tokens: int
    num_cached_prompt_tokens: int
    shares_prefixes: bool
    num_preemptions: int
    num_drawn: int
    num_guesses: int
    num_right_guesses: int
    num_steps: int
    compilations_after_warm_up: int
    host_seconds_per_step: float


class Engine:
    """Draws answers from a model with a `logits` entry, as `CausalLM` has.

    Args:
        model: The model, as it is trained.
        state: Its state.
        tokenizer: The tokenizer that it was trained with.
        cfg: How much is served at once.

    Raises:
        ConfigError: The config does not fit the model, or itself.
    """

    def __init__(
        self,
        model: Module,
        state: Any,
        tokenizer: Tokenizer,
        cfg: EngineConfig = EngineConfig(),  # noqa: B008 - a frozen value
    ) -> None:
        if cfg.max_length is None:
            raise ConfigError(
                "max_length is None: the model does not say how long its texts are",
                where="max_length",
                hint="set it to the length that the model was trained with",
            )
        self.tokenizer = tokenizer
        self.max_length = cfg.max_length
        page_size = min(cfg.page_size or cfg.max_length, cfg.max_length)
        pages_per_row = -(-cfg.max_length // page_size)
        num_pages = cfg.num_pages or cfg.max_rows * pages_per_row
        if cfg.fixed_shapes and num_pages < cfg.max_rows * pages_per_row:
            raise ConfigError(
                f"num_pages is {num_pages}; {cfg.max_rows} rows of {cfg.max_length} tokens need "
                f"{cfg.max_rows * pages_per_row}, and with fixed_shapes none may be read again",
                where="num_pages",
                hint="leave num_pages out, or serve fewer rows",
            )
        self.config = evolve(cfg, num_pages=num_pages)
        self._shapes = call_shapes(cfg)
        room = ServingRoom(
            num_rows=cfg.max_rows,
            capacity=-(-cfg.max_length // 64) * 64,
            max_length=cfg.max_length,
            pages=PageRoom(num_pages=num_pages, page_size=page_size) if cfg.page_size else None,
            call_tokens=cfg.step_tokens,
        )
        quantization = NAMED_WEIGHTS[cfg.weights] if cfg.weights else None
        served = CachedModel(model, state, room, quantization=quantization)
        self._programs = Programs(
            served, pages_per_row=pages_per_row, allowed=allowed_tokens(model, tokenizer)
        )
        _check_speculation(cfg, served)
        guesses = cfg.speculation
        self._tokens_per_call = 1 + guesses.num_tokens if guesses else cfg.tokens_per_call
        limits = Limits(
            num_slots=cfg.max_rows,
            max_length=cfg.max_length,
            page_size=page_size,
            num_pages=num_pages,
            step_tokens=cfg.step_tokens,
            tokens_per_call=self._tokens_per_call,
            chunk_lengths=self._shapes.chunk_lengths,
            chunk_rows=tuple(sizes[-1] for sizes in self._shapes.read_sizes),
            alone_length=self._shapes.alone_length,
            shares_prefixes=cfg.shares_prefixes and served.keeps_pages_only,
            chunk_alignment=self._shapes.chunk_alignment,
            fixed_calls=cfg.fixed_shapes,
        )
        self._kinds = cfg.draw_kinds[-1:] if cfg.fixed_shapes else cfg.draw_kinds
        self._runner = StepRunner(
            self._programs,
            Scheduler(limits),
            self._shapes,
            end_ids=tuple(tokenizer.end_ids),
            kinds=self._kinds,
            guesses=guesses is not None,
        )
        self._grammars = GrammarCompiler(tokenizer)
        self._compiled_before = 0
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._inbox: deque[Callable[[], None]] = deque()
        self._epoch = 0
        self._num_submitted = 0
        self._num_prompt_tokens = 0
        self._num_cached_prompt_tokens = 0
        self._tasks: dict[Answer, Task] = {}
        self._is_draining = False
        self._is_closed = False
        self._error: EngineError | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm_up(self, progress: Callable[[int, int, str], None] | None = None) -> None:
        """Compiles every program that requests can need, as many at once as there are cores.

        Args:
            progress: Is called with the number of compiled programs, of all, and the name of the
                last.
        """
        keys = self._program_keys()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            futures = {pool.submit(self._programs.prepare, key): key for key in keys}
            for done, future in enumerate(concurrent.futures.as_completed(futures), start=1):
                future.result()
                if progress is not None:
                    progress(done, len(keys), " ".join(map(str, futures[future])))
        self._compiled_before = self._programs.num_compiled

    def submit(self, request: Request) -> Answer:
        """Takes a request; returns at once.

        Raises:
            RequestError: It can never be answered.
            QueueFull: Too many requests wait.
            Draining: The engine takes no more.
            EngineError: The engine is closed, or a step failed.
        """
        self._check(request)
        text = AnswerText(self.tokenizer, request.prompt, request.stop)
        answer = Answer(request, text, self._cancel)
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
        scores = np.zeros(len(request.prompt) - 1, np.float32) if request.prompt_logprobs else None
        guesses = self.config.speculation
        index = NGramIndex(guesses, request.prompt) if guesses else None
        task = Task(request, answer, job, matcher, scores, index)

        def add() -> None:
            self._num_submitted -= 1
            self._num_prompt_tokens += len(request.prompt)
            job.salt = str(self._epoch).encode()
            self._runner.add(task)

        with self._changed:
            self._check_open()
            if self._num_submitted + self._runner.scheduler.num_waiting >= self.config.max_queue:
                raise QueueFull(f"{self.config.max_queue} requests wait already")
            if self._is_draining:
                raise Draining("the engine finishes what it has and takes no new requests")
            self._tasks[answer] = task
            self._num_submitted += 1
            self._send(add)
        return answer

    def stats(self) -> EngineStats:
        """Returns what the engine does now."""
        runner, scheduler = self._runner, self._runner.scheduler
        return EngineStats(
            num_waiting=self._num_submitted + scheduler.num_waiting,
            num_running=scheduler.num_running,
            num_slots=self.config.max_rows,
            pages_used=scheduler.pool.num_used,
            pages_total=scheduler.pool.num_pages,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_prompt_tokens=scheduler.num_shared,
            shares_prefixes=scheduler.limits.shares_prefixes,
            num_preemptions=scheduler.num_preemptions,
            num_drawn=runner.num_drawn,
            num_guesses=runner.num_guesses,
            num_right_guesses=runner.num_right_guesses,
            num_steps=runner.num_steps,
            compilations_after_warm_up=self._programs.num_compiled - self._compiled_before,
            host_seconds_per_step=runner.host_seconds / max(1, runner.num_steps),
        )

    def replace_weights(self, state: Any) -> None:
        """Takes over another state of the model between two steps; returns when it is in use.

        Answers that are being drawn continue with it: what caches hold of their texts remains. No
        new request finds a prefix that the old weights computed.

        Raises:
            ConfigError: It is not of this model.
            EngineError: The engine is closed, or a step failed.
        """
        weights = self._programs.converted(state)

        def replace() -> None:
            self._programs.weights = weights
            self._epoch += 1
            self._runner.scheduler.forget_prefixes()

        self._do(replace)

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
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _check(self, request: Request) -> None:
        """Refuses a request that can never be answered."""
        size = len(request.prompt)
        vocab = self._programs.vocab_size
        if not size:
            raise RequestError("the prompt has no token", where="prompt")
        wrong = next((token for token in request.prompt if not 0 <= token < vocab), None)
        if wrong is not None:
            raise RequestError(
                f"the prompt has token {wrong}; the model knows {vocab} tokens, 0 the first",
                where="prompt",
            )
        if request.max_tokens < 1:
            raise RequestError(
                f"max_tokens is {request.max_tokens}; expected 1 or more", where="max_tokens"
            )
        if size + request.max_tokens > self.max_length:
            raise RequestError(
                f"the prompt has {size} tokens, and max_tokens is {request.max_tokens}: together "
                f"more than {self.max_length}, the longest text",
                where="max_tokens",
                hint="shorten the prompt, or ask for fewer tokens",
            )
        scheduler = self._runner.scheduler
        needed = -(-(size + request.max_tokens) // scheduler.limits.page_size)
        if needed > scheduler.pool.num_pages:
            raise RequestError(
                f"prompt and answer need {needed} pages; there are {scheduler.pool.num_pages}",
                where="max_tokens",
            )
        if request.num_logprobs is not None and not 0 <= request.num_logprobs <= MAX_LOGPROBS:
            raise RequestError(
                f"num_logprobs is {request.num_logprobs}; expected 0 to {MAX_LOGPROBS}",
                where="num_logprobs",
            )
        try:
            request.sampling.check(self.tokenizer.vocab_size)
            kind_index(request.sampling, self._kinds)
        except ConfigError as error:
            raise RequestError(error.what, where="sampling", hint=error.hint) from error
        if request.adapter is not None:
            raise RequestError(f"there is no adapter {request.adapter!r}", where="adapter")
        if request.grammar is not None and self.config.fixed_shapes:
            raise RequestError(
                "an engine of fixed_shapes draws several tokens in a call, and a grammar needs "
                "each before the next",
                where="grammar",
                hint="set fixed_shapes to False",
            )

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
            self._check_open()
            self._send(run)
        while True:
            with contextlib.suppress(TimeoutError):
                return future.result(timeout=1.0)
            if self._is_closed and not future.done():
                self._check_open()

    def _cancel(self, answer: Answer) -> None:
        with self._changed:
            task = self._tasks.get(answer)
            if task is not None:
                self._send(lambda: self._runner.cancel(task))

    def _is_idle(self) -> bool:
        return not self._inbox and not self._runner.has_work

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
            self._tasks = {
                answer: task for answer, task in self._tasks.items() if not task.job.is_over
            }
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
            tasks, self._tasks = self._tasks, {}
            self._changed.notify_all()
        for answer in tasks:
            if not answer.is_finished:
                answer.fail(error)

    def _program_keys(self) -> list[tuple[Any, ...]]:
        """Returns the keys of all programs; see `Programs`."""
        shapes, cfg = self._shapes, self.config
        keys: list[tuple[Any, ...]] = [
            ("read", size, length)
            for length, sizes in zip(shapes.chunk_lengths, shapes.read_sizes, strict=True)
            for size in sizes
        ]
        keys.append(("score", shapes.alone_length))
        keys += [("advance", size) for size in shapes.draw_sizes]
        drawing = {*shapes.draw_sizes, *itertools.chain.from_iterable(shapes.read_sizes)}
        keys += [("draw", size, kind) for size in sorted(drawing) for kind in self._kinds]
        if self._tokens_per_call > 1:
            keys += [
                (
                    "check_guesses" if cfg.speculation else "draw_many",
                    size,
                    self._tokens_per_call,
                    kind,
                )
                for size in shapes.draw_sizes
                for kind in self._kinds
            ]
        if self._runner.scheduler.limits.shares_prefixes:
            keys.append(("copy_page",))
        sizes = range(5, max(5, (self.max_length - 1).bit_length()) + 1)
        return keys + [("start_history", 1 << size) for size in sizes]


def _check_speculation(cfg: EngineConfig, served: CachedModel) -> None:
    """Refuses guesses where a wrong one could not be taken back."""
    if cfg.speculation is None:
        return
    cfg.speculation.check()
    reason = None
    if cfg.fixed_shapes:
        reason = "calls of fixed shapes draw a fixed number of tokens"
    elif not served.keeps_pages_only:
        reason = "a layer of the model keeps a state, or a row of its own, which has no way back"
    if reason is not None:
        raise ConfigError(
            f"tokens cannot be guessed ahead: {reason}",
            where="speculation",
            hint="leave speculation None, or keep keys and values in pages",
        )


def allowed_tokens(model: Any, tokenizer: Tokenizer) -> np.ndarray:
    """Returns bits of the logits that are of tokens that text may have, or of its end."""
    allowed = np.zeros(model.config.vocab_size, bool)
    allowed[: tokenizer.vocab_size] = True
    for token in (tokenizer.bos_id, tokenizer.pad_id):
        if token is not None and token not in tokenizer.end_ids:
            allowed[token] = False
    return packed_mask(allowed[None])
