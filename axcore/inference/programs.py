"""`Programs`: runs the compiled programs of an engine, and holds what they change on the device.

A program is made for a number of rows and of tokens. What a call's rows are comes as one array of
whole numbers, so that a call costs one transfer.

Letters of shapes: B rows of a call, T tokens, V vocabulary, S slots, W words of a mask.
"""

import time
from collections.abc import Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, UInt32

from axcore.hardware.large_pages import use_large_pages
from axcore.inference.cached_model import mesh_of
from axcore.inference.compiled import CompiledPrograms
from axcore.inference.device_calls import Drawn, Memory
from axcore.inference.drafted_model import AnyCachedModel
from axcore.inference.drawing import DrawKind, LogProbs, SamplingRows, empty_history, greedy_rows
from axcore.inference.model_calls import ModelCalls
from axcore.inference.program_table import program_table
from axcore.inference.served_weights import ServedWeights, abstract

_NO_TRIFLE = 1 << 18
"""Bytes of arrays whose place in memory matters."""


class Programs:
    """Runs a model for an engine; not for several threads, but for `prepare`.

    Args:
        model: The model with caches.
        weights: What it is called with.
        pages_per_row: Pages of the longest text.
        max_length: Its tokens.
        allowed: Packed bits of the tokens that text may have, `[1, W]`.

    Attributes:
        allowed: The same.
        weights: What the model is called with.
        compiled: The programs.
        device_seconds: Time that the runtime took of the calling thread, compiling included. On
            CPUs a call computes, or waits for the one before it, where it is started.
    """

    def __init__(
        self,
        model: AnyCachedModel,
        weights: Any,
        *,
        pages_per_row: int,
        max_length: int,
        allowed: UInt32[np.ndarray, "1 W"],
    ) -> None:
        self.device_seconds = 0.0
        self.weights = ServedWeights(weights, model.conversion)
        self.vocab_size = model.vocab_size
        self.allowed = allowed
        self._max_length = max_length
        self._everywhere = _replicated(self.weights.value)
        self._allowed_rows: dict[int, Any] = {}
        self._held: dict[str, Any] = {
            "caches": model.empty_caches(),
            **self._put(drawing_values(model.num_rows, allowed, self.vocab_size)),
        }
        _use_large_pages((self.weights.value, self.caches))
        self._shapes = abstract({**self._held, "weights": self.weights.value})
        self._places = {"caches": model.cache_shardings, "memory": self._everywhere}
        self._table = program_table(
            ModelCalls(model, pages_per_row),
            pages_per_row=pages_per_row,
            vocab_size=self.vocab_size,
            mask=self._shapes["allowed"],
        )
        self.compiled = CompiledPrograms(self._lowered)

    @property
    def caches(self) -> Any:
        """What is kept of the tokens that were read."""
        return self._held["caches"]

    def replace_weights(self, state: Any) -> None:
        """Takes over another state of the model; see `ServedWeights.replace`."""
        for leaf in jax.tree.leaves(self.caches):  # the last call holds old weights until it ends
            leaf.block_until_ready()
        self.weights.replace(state)
        _use_large_pages(self.weights.value)

    def set_sampling(self, sampling: SamplingRows) -> None:
        """Takes over how each slot draws, `[S]`."""
        start = time.perf_counter()
        self._held["sampling"] = self._put(SamplingRows(*(value.copy() for value in sampling)))
        self.device_seconds += time.perf_counter() - start

    def read(self, call: np.ndarray, length: int) -> Float[Array, "B V"]:
        """Reads tokens of rows; returns the logits after the last one of each."""
        (logits,) = self._run(("read", len(call), length), call)
        return logits  # type: ignore[no-any-return]

    def advance(self, call: np.ndarray) -> Float[Array, "B V"]:
        """Reads the token that each row drew last; returns the logits after it."""
        (logits,) = self._run(("advance", len(call)), call)
        return logits  # type: ignore[no-any-return]

    def score(self, call: np.ndarray, length: int) -> tuple[LogProbs, Float[Array, "1 V"]]:
        """Reads tokens of one row; returns what could follow each of them, `[T]` and `[T, n]`.

        The tokens after each are in the columns behind the tokens. Of the likeliest only the first
        is there where the row wants no log-probabilities of its answer. The logits after the last
        token are returned too.
        """
        scores, logits = self._run(("score", length), call)
        return scores, logits

    def draw(
        self,
        logits: Float[Array, "B V"],
        call: np.ndarray,
        kind: DrawKind,
        *,
        allowed: UInt32[np.ndarray, "B W"] | None = None,
    ) -> Drawn:
        """Draws a token of each row from logits.

        Args:
            logits: Of the rows.
            call: The rows; see `CallRows`.
            kind: What the program can do.
            allowed: Packed bits of the tokens that each row may draw; None allows all of the text.
        """
        rows = len(call)
        if allowed is None and rows not in self._allowed_rows:
            whole = np.repeat(self.allowed, rows, axis=0)
            self._allowed_rows[rows] = self._put(whole)
        masks = self._allowed_rows[rows] if allowed is None else allowed
        (drawn,) = self._run(("draw", rows, kind), masks, logits, call)
        return drawn  # type: ignore[no-any-return]

    def draw_many(self, call: np.ndarray, count: int, kind: DrawKind) -> Drawn:
        """Draws tokens of each row, one after the other."""
        (drawn,) = self._run(("draw_many", len(call), count, kind), call)
        return drawn  # type: ignore[no-any-return]

    def check_guesses(self, call: np.ndarray, length: int, kind: DrawKind) -> tuple[Drawn, Array]:
        """Reads the last token of each row and guesses of those after it; draws at each place.

        Returns:
            What was drawn, `[length, B]`, and how many of each row belong to its answer, `[B]`.
        """
        drawn, counts = self._run(("check_guesses", len(call), length, kind), call)
        return drawn, counts

    def copy_page(self, source: int, target: int) -> None:
        """Copies a page of all caches."""
        self._run(("copy_page",), np.asarray([source, target], np.int32))

    def start_history(self, slot: int, text: np.ndarray, num_prompt: int) -> None:
        """Lets the penalties of a slot count the tokens of a text."""
        padded = np.pad(text.astype(np.int32), (0, self._max_length - len(text)))[None]
        lengths = np.asarray([[num_prompt, len(text)]], np.int32)
        self._run(
            ("start_history", self._max_length), np.asarray([slot], np.int32), padded, lengths
        )

    def _put(self, tree: Any) -> Any:
        return jax.device_put(tree, self._everywhere)

    def _run(self, key: Hashable, *inputs: Any) -> tuple[Any, ...]:
        start = time.perf_counter()
        program = self._table[key[0]]  # type: ignore[index]
        held = {**self._held, "weights": self.weights.value}
        taken = (held[name] for name in program.takes)
        results, changed = self.compiled.of_call(key)(*taken, *inputs)
        self._held.update(zip(program.changes, changed, strict=True))
        self.device_seconds += time.perf_counter() - start
        return results  # type: ignore[no-any-return]

    def _lowered(self, key: Any) -> Any:
        """Returns the program of a key: its name, and the sizes that it is made for."""
        name, *sizes = key
        places = self._everywhere, self._places
        return self._table[name].lowered(tuple(sizes), self._shapes, places)


def drawing_values(
    num_slots: int, allowed: UInt32[np.ndarray, "1 W"], vocab_size: int
) -> dict[str, Any]:
    """Returns what an engine holds besides weights and caches, by the names in `program_table`."""
    return {
        "memory": Memory(jnp.zeros(num_slots, jnp.int32), empty_history(num_slots, vocab_size)),
        "sampling": greedy_rows(num_slots),
        "allowed": allowed,
    }


def _replicated(weights: Any) -> NamedSharding | None:
    """Returns how arrays lie that each device of the weights' mesh has; None without a mesh."""
    mesh = mesh_of(weights)
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]


def _use_large_pages(arrays: Any) -> None:
    """Keeps what of arrays lies in the host's memory, and is no trifle, in large pages."""
    use_large_pages(
        (part.unsafe_buffer_pointer(), part.nbytes)
        for leaf in jax.tree.leaves(arrays)
        for part in _parts(leaf)
        if part.nbytes >= _NO_TRIFLE
    )


def _parts(leaf: Array) -> list[Array]:
    """Returns what of an array each host processor has."""
    if any(device.platform != "cpu" for device in leaf.devices()):
        return []
    if len(leaf.devices()) == 1:
        return [leaf]
    return [shard.data for shard in leaf.addressable_shards]
