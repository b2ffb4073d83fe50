"""`SlotTasks`: the request in each slot, how its row draws, and what a call gets of that."""

import numpy as np
from jaxtyping import Bool, Int32

from axcore.inference.adapters import NO_ADAPTER
from axcore.inference.device_calls import NUM_COLUMNS
from axcore.inference.drawing import DrawKind, greedy_rows
from axcore.inference.engine_checks import kind_index
from axcore.inference.row_table import RowTable
from axcore.inference.step_plan import Call
from axcore.inference.task import Task


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
