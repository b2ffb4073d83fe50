"""`StepRunner`: runs what the scheduler plans, and hands out what is drawn. For one thread."""

import time
from collections import deque

import attrs
import numpy as np
from jaxtyping import Array, Bool, Int32

from axcore.errors import RequestError
from axcore.inference.adapters import NO_ADAPTER
from axcore.inference.cached_model import NUM_COLUMNS
from axcore.inference.completion import TokenLogprobs, TokenPiece
from axcore.inference.config import CallShapes
from axcore.inference.model_functions import Drawn
from axcore.inference.output_processor import LaunchedCall, Task
from axcore.inference.programs import Programs
from axcore.inference.request import DrawKind, kind_index
from axcore.inference.sampler import LogProbs, greedy_rows
from axcore.inference.schedule import Call, Job, RowTable, StepPlan
from axcore.inference.scheduler import Scheduler
from axcore.inference.warm_up import Stage


class SlotTasks:
    """Requests by slot. What a request leaves stays until the next one has its slot.

    Args:
        rows: The scheduler's rows.
        num_slots: Slots there are.
        kinds: What programs can draw, the cheapest first.

    Attributes:
        sampling: How each slot draws.
        wants_logprobs: Whether log-probabilities are returned, by slot.
        ignores_end: Whether tokens that end a text are drawn as any other, by slot.
    """

    def __init__(self, rows: RowTable, num_slots: int, kinds: tuple[DrawKind, ...]) -> None:
        self.sampling = greedy_rows(num_slots)
        self.wants_logprobs: Int32[np.ndarray, " S"] = np.zeros(num_slots, np.int32)
        self.ignores_end: Bool[np.ndarray, " S"] = np.zeros(num_slots, bool)
        self._rows, self._kinds = rows, kinds
        self._tasks: list[Task | None] = [None] * num_slots
        self._kind = np.zeros(num_slots, np.int32)
        self._adapter = np.full(num_slots, NO_ADAPTER, np.int32)

    def set(self, slot: int, task: Task) -> None:
        """Gives a slot to a request that starts."""
        request = task.request
        self._tasks[slot] = task
        self.sampling.set_row(slot, request.sampling, seed=request.seed)
        self._kind[slot] = kind_index(request.sampling, self._kinds)
        self.wants_logprobs[slot] = request.num_logprobs is not None
        self._adapter[slot] = task.adapter.number
        self.ignores_end[slot] = request.ignores_end

    def of(self, call: Call) -> list[Task | None]:
        """Returns the requests of a call's rows."""
        return [self._tasks[slot] for slot in call.slots.tolist()]

    def kind_of(self, call: Call, least: int) -> DrawKind:
        """Returns the first kind of program that draws all rows of a call, from `least` on."""
        return self._kinds[max(least, int(self._kind[call.slots].max()))]

    def array(self, call: Call, num_rows: int, num_tokens: int) -> Int32[np.ndarray, "B columns"]:
        """Returns the rows of a call as one array; see `CallRows`."""
        table, count = self._rows.page_table, len(call.slots)
        array = np.zeros((num_rows, NUM_COLUMNS + table.shape[1] + num_tokens), np.int32)
        array[count:, 0] = len(self._tasks)
        used = array[:count]
        used[:, 0], used[:, 1], used[:, 2] = call.slots, call.starts, call.sizes
        used[:, 3] = call.first_drawn - self._rows.num_prompt[call.slots]
        used[:, 4] = call.num_drawn > 0
        used[:, 5] = self.wants_logprobs[call.slots]
        used[:, 6] = self._adapter[call.slots]
        used[:, NUM_COLUMNS : NUM_COLUMNS + table.shape[1]] = table[call.slots]
        return array

    def write_tokens(self, call: Call, tokens: np.ndarray, ahead: int) -> None:
        """Writes the tokens that each row reads, or those some places ahead as far as known."""
        text, target = self._rows.text, self._rows.target
        for row, (slot, start, size) in enumerate(
            zip(call.slots.tolist(), call.starts.tolist(), call.sizes.tolist(), strict=True)
        ):
            end = min(start + ahead + size, int(target[slot]))
            tokens[row, : end - start - ahead] = text[slot, start + ahead : end]


class StepRunner:
    """Runs steps; the results of one are read when the next is under way.

    Args:
        programs: What runs on the device.
        scheduler: What decides.
        shapes: Those that programs are made for.
        end_ids: Tokens that end a text.
        kinds: What programs can draw, the cheapest first.
        guesses: Whether tokens are guessed ahead; then each step waits for the one before.
    """

    def __init__(
        self,
        programs: Programs,
        scheduler: Scheduler,
        shapes: CallShapes,
        *,
        end_ids: tuple[int, ...],
        kinds: tuple[DrawKind, ...],
        guesses: bool = False,
    ) -> None:
        self.programs = programs
        self.scheduler = scheduler
        self.num_steps = 0
        self.num_drawn = 0
        self.num_guesses = 0
        self.num_right_guesses = 0
        self.host_seconds = 0.0
        self._shapes = shapes
        self._kinds, self._least_kind = kinds, 0
        self._is_end = np.zeros(programs.vocab_size, bool)
        self._is_end[list(end_ids)] = True
        slots = scheduler.limits.num_slots
        self._tasks: dict[int, Task] = {}
        self._slots = SlotTasks(scheduler.rows, slots, kinds)
        self._launched: deque[LaunchedCall] = deque()
        self._waited = 0.0
        self._num_matchers = 0
        self._guesses = guesses

    def use(self, stage: Stage) -> None:
        """Calls programs of a stage only from here on."""
        self._shapes, self._least_kind = stage.shapes, len(self._kinds) - len(stage.kinds)
        self.scheduler.limits = attrs.evolve(self.scheduler.limits, **stage.shapes.limits)

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished, or any result not read."""
        return bool(self._tasks or self._launched)

    @property
    def adapters_in_use(self) -> set[int]:
        """Numbers of the adapters of all requests that are not finished."""
        return {task.adapter.number for task in self._tasks.values()}

    def add(self, task: Task) -> None:
        """Lets a request wait for its turn."""
        self._tasks[task.job.number] = task
        self._num_matchers += task.matcher is not None
        self.scheduler.add(task.job)

    def cancel(self, task: Task) -> None:
        """Ends a request, if it is not finished."""
        self._forget(task)
        task.answer.put(TokenPiece((), None, "cancelled"))

    def give_up(self) -> list[Task]:
        """Returns all requests that are not finished, in the order of arrival, and has none."""
        tasks = sorted(self._tasks.values(), key=lambda task: task.job.number)
        self._tasks.clear()
        return tasks

    def step(self) -> None:
        """Plans and starts a step, and reads the results of the one before."""
        start, self._waited = time.perf_counter(), -self.programs.device_seconds
        if self._num_matchers or self._guesses:
            self._finish_all(len(self._launched))
        num_before = len(self._launched)
        plan = self.scheduler.plan()
        if not plan.is_empty:
            self.num_steps += 1
            self._launch(plan)
        self._finish_all(num_before)
        self._waited += self.programs.device_seconds
        self.host_seconds += time.perf_counter() - start - self._waited

    def _finish_all(self, number: int) -> None:
        for _ in range(number):
            self._finish(self._launched.popleft())

    def _launch(self, plan: StepPlan) -> None:
        for job in plan.started:
            if job.slot is not None:  # it may have lost it to a row before it
                self._set_row(job)
        if plan.started:
            self.programs.set_sampling(self._slots.sampling)
        for source, target in plan.copies:
            self.programs.copy_page(source, target)
        if plan.read is not None:
            self._read(plan.read)
        if plan.draw is not None:
            self._draw(plan.draw)

    def _set_row(self, job: Job) -> None:
        """Writes down how the row of a job that starts draws."""
        task, slot = self._tasks[job.number], job.slot
        assert slot is not None
        self._slots.set(slot, task)
        if task.request.sampling.has_penalties:
            self.programs.start_history(slot, job.text, job.num_prompt)

    def _read(self, call: Call) -> None:
        rows = self._shapes.read_rows(len(call.slots), call.length)
        array = self._slots.array(call, rows, call.length)
        width = array.shape[1] - call.length
        self._slots.write_tokens(call, array[:, width:], 0)
        task, scores = self._slots.of(call)[0], None
        is_scored = task is not None and task.request.prompt_logprobs
        if is_scored or self._shapes.reads_by_score:
            following = np.zeros((1, call.length), np.int32)
            self._slots.write_tokens(call, following, 1)
            found, logits = self.programs.score(
                np.concatenate([array, following], axis=1), call.length
            )
            scores = found if is_scored else None
        else:
            logits = self.programs.read(array, call.length)
        drawn = None
        if call.num_drawn.any():
            drawn = self._draw_from(logits, call, array[:, :width].copy())
        if drawn is not None or scores is not None:
            self._add(call, drawn, scores)

    def _draw(self, call: Call) -> None:
        if self._guesses and call.length > 1:
            guesses = self._guessed(call)
            if any(guesses):
                self._check_guesses(call, guesses)
                return
            call = self.scheduler.take_back(call, np.ones_like(call.sizes))
        array = self._slots.array(call, self._shapes.draw_rows(len(call.slots)), 0)
        if call.length == 1:
            drawn = self._draw_from(self.programs.advance(array), call, array)
        else:
            drawn = self.programs.draw_many(
                array, call.length, self._slots.kind_of(call, self._least_kind)
            )
        self._add(call, drawn, None)

    def _guessed(self, call: Call) -> list[list[int]]:
        """Returns guesses of each row's next tokens, one fewer than it may draw."""
        tasks = self._slots.of(call)
        return [
            task.index.guess()[: size - 1] if task is not None and task.index is not None else []
            for task, size in zip(tasks, call.sizes.tolist(), strict=True)
        ]

    def _check_guesses(self, call: Call, guesses: list[list[int]]) -> None:
        array = self._slots.array(call, self._shapes.draw_rows(len(call.slots)), call.length)
        width, text = array.shape[1] - call.length, self.scheduler.rows.text
        for row, guess in enumerate(guesses):
            array[row, 2] = 1 + len(guess)
            array[row, width] = text[call.slots[row], call.starts[row]]
            array[row, width + 1 : width + 1 + len(guess)] = guess
            self.num_guesses += len(guess)
        drawn, counts = self.programs.check_guesses(
            array, call.length, self._slots.kind_of(call, self._least_kind)
        )
        self._launched.append(LaunchedCall(call, self._slots.of(call), drawn, None, counts))

    def _draw_from(self, logits: Array, call: Call, array: np.ndarray) -> Drawn:
        allowed = self._allowed(call, len(array)) if self._num_matchers else None
        return self.programs.draw(
            logits, array, self._slots.kind_of(call, self._least_kind), allowed=allowed
        )

    def _allowed(self, call: Call, num_rows: int) -> np.ndarray | None:
        """Returns which tokens the rows of a call may draw, where one has a grammar."""
        allowed = None
        tasks = self._slots.of(call)
        for row in np.flatnonzero(call.num_drawn).tolist():
            task = tasks[row]
            if task is None or task.matcher is None:
                continue
            if allowed is None:
                allowed = np.repeat(self.programs.allowed, num_rows, axis=0)
            mask = np.zeros_like(allowed[row])
            try:
                task.matcher.fill(mask)
            except RequestError as error:
                self._fail(task, error)
                continue
            allowed[row] &= mask
        return allowed

    def _fail(self, task: Task, error: Exception) -> None:
        """Ends one request with an error."""
        self._forget(task)
        task.answer.fail(error)

    def _add(self, call: Call, drawn: Drawn | None, scores: LogProbs | None) -> None:
        self._launched.append(LaunchedCall(call, self._slots.of(call), drawn, scores))

    def _finish(self, launched: LaunchedCall) -> None:
        """Reads what a call drew, and hands it out."""
        call = launched.call
        if launched.scores is not None:
            launched.keep_scores(TokenLogprobs(*map(self._read_back, launched.scores)))
        if launched.drawn is None:
            return
        drawn = self._read_back(launched.drawn.tokens)
        tokens = drawn.T[: len(call.slots)]
        if launched.counts is not None:
            kept = self._read_back(launched.counts)[: len(call.slots)]
            call = self.scheduler.take_back(call, kept)
            self.num_right_guesses += int((kept - 1).sum())
        current = self.scheduler.record(call, tokens)
        steps = np.arange(tokens.shape[1])[None, :]
        ends = self._is_end[tokens] & ~self._slots.ignores_end[call.slots][:, None]
        ends &= steps < call.num_drawn[:, None]
        is_ended = ends.any(axis=1)
        counts = np.where(is_ended, ends.argmax(axis=1) + 1, call.num_drawn)
        is_full = call.first_drawn + call.num_drawn >= self.scheduler.rows.limit[call.slots]
        wants = self._slots.wants_logprobs[call.slots].any()
        logprobs = launched.logprobs() if wants else None
        rows = np.flatnonzero(current & (call.num_drawn > 0))
        self.num_drawn += int(counts[rows].sum())
        drawn_by_row, count_of = tokens.tolist(), counts.tolist()
        is_stopped, is_cut = is_ended.tolist(), is_full.tolist()
        for row in rows.tolist():
            task = launched.tasks[row]
            assert task is not None
            reason = "stop" if is_stopped[row] else "length" if is_cut[row] else None
            self._hand_out(task, drawn_by_row[row][: count_of[row]], reason, logprobs, row)

    def _read_back(self, array: Array) -> np.ndarray:
        """Returns an array of the device, when it is computed."""
        start = time.perf_counter()
        values = np.asarray(array)
        self._waited += time.perf_counter() - start
        return values

    def _hand_out(
        self,
        task: Task,
        tokens: list[int],
        reason: str | None,
        logprobs: TokenLogprobs | None,
        row: int,
    ) -> None:
        own, has_end = None, reason == "stop"
        if logprobs is not None and task.request.num_logprobs is not None:
            own = TokenLogprobs(*(value[row, : len(tokens)] for value in logprobs))
        if task.matcher is not None and not has_end:
            try:
                task.matcher.accept(tokens)
            except RequestError as error:
                self._fail(task, error)
                return
            reason = "stop" if task.matcher.is_finished else reason
        if task.index is not None:
            task.index.push(tokens)
        if reason is not None:
            self._forget(task)
        task.answer.put(TokenPiece(tokens, own, reason, has_end))
        if reason is None and task.answer.is_finished:
            self._forget(task)

    def _forget(self, task: Task) -> None:
        task.answer.num_cached_prompt_tokens = task.job.num_shared
        self.scheduler.finish(task.job)
        if self._tasks.pop(task.job.number, None) is not None:
            self._num_matchers -= task.matcher is not None
