"""`Programs`: the compiled programs of an engine, and what they keep on the device.

A program is made for a number of rows and of tokens. What a call's rows are comes as one array of
whole numbers, so that a call costs one transfer.

Letters of shapes: B rows of a call, P pages of a row, T tokens, V vocabulary, S slots.
"""

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, UInt32

from axcore.errors import ConfigError
from axcore.inference.cached_model import CachedModel, mesh_of
from axcore.inference.device_calls import (
    NUM_COLUMNS,
    CallRows,
    Drawn,
    Memory,
    call_rows,
    copy_page,
    draw_rows,
    drawn_tokens,
    logprobs_of,
    start_history,
)
from axcore.inference.drawing import (
    DrawKind,
    SamplingRows,
    empty_history,
    greedy_rows,
)
from axcore.inference.speculation import verify
from axcore.layers import with_adapter
from axcore.layers.lora.batched import Factors
from axcore.ops import current_policy, use_policy
from axcore.plugins import wanted_compiler_options

AdapterFactors = Mapping[tuple[str, ...], Factors]
"""Factors of an adapter's layers, by their paths."""


class Programs:
    """Runs a model for an engine; not for several threads, but for `prepare`.

    Args:
        model: The model with caches.
        pages_per_row: Pages of the longest text.
        allowed: Packed bits of the tokens that text may have, `[1, W]`.

    Attributes:
        allowed: The same.
        num_compiled: Programs compiled so far.
        device_seconds: Time that the runtime took of the calling thread, compiling included. On
            CPUs a call computes, or waits for the one before it, where it is started.
        weights: What the model is called with.
    """

    def __init__(
        self, model: CachedModel, *, pages_per_row: int, allowed: UInt32[np.ndarray, "1 W"]
    ) -> None:
        self.num_compiled = 0
        self.device_seconds = 0.0
        self.weights = model.weights
        self._model = model
        self._pages_per_row = pages_per_row
        self._everywhere = _replicated(self.weights)
        self._outputs = _output_shardings(self._everywhere, model.cache_shardings)
        self.allowed = allowed
        self._allowed = self._put(allowed)
        self._allowed_rows: dict[int, Any] = {}
        self._adapters: dict[int, AdapterFactors] = {}
        self._caches = model.empty_caches()
        slots, vocab = model.num_rows, model.vocab_size
        self.vocab_size = vocab
        empty = Memory(jnp.zeros(slots, jnp.int32), empty_history(slots, vocab))
        self._memory: Memory = self._put(empty)
        self._sampling: Any = self._put(greedy_rows(slots))
        self._compiled: dict[Hashable, Any] = {}
        self._lock = threading.Lock()
        self._policy = current_policy()
        self._options = dict(wanted_compiler_options(self._policy.hardware)) or None

    def converted(self, state: Any) -> Any:
        """Returns weights made of another state of the model.

        Raises:
            ConfigError: Its arrays are not those of the model.
        """
        weights = self._model.weights_of(state)
        if _abstract(weights) != _abstract(self.weights):
            raise ConfigError(
                "the arrays differ in shape, type or place from those that the programs are made "
                "for",
                hint="give a state of the same model",
            )
        return weights

    def set_weights(self, weights: Any) -> None:
        """Takes over weights that `converted` returned; adapters stay."""
        for number, factors in self._adapters.items():
            weights = with_adapter(weights, number, factors)
        self.weights = jax.device_put(weights, self._weights_lie())

    def set_adapter(self, number: int, factors: AdapterFactors | None) -> None:
        """Takes over the factors of an adapter, by the paths of layers; None takes it out.

        Raises:
            ModuleError: The model has no such layer, or no room for its rank.
        """
        changed = with_adapter(self.weights, number, factors)
        self.weights = jax.device_put(changed, self._weights_lie())
        self._adapters.pop(number, None)
        if factors is not None:
            self._adapters[number] = factors

    def set_sampling(self, sampling: SamplingRows) -> None:
        """Takes over how each slot draws, `[S]`."""
        start = time.perf_counter()
        self._sampling = self._put(SamplingRows(*(value.copy() for value in sampling)))
        self.device_seconds += time.perf_counter() - start

    def _weights_lie(self) -> Any:
        return jax.tree.map(lambda leaf: leaf.sharding, self.weights)

    def _put(self, tree: Any) -> Any:
        return jax.device_put(tree, self._everywhere)

    def read(self, call: np.ndarray, length: int) -> Float[Array, "B V"]:
        """Reads tokens of rows; returns the logits after the last one of each."""
        logits, self._caches = self._run(
            ("read", len(call), length), self.weights, self._caches, call
        )
        return logits  # type: ignore[no-any-return]

    def advance(self, call: np.ndarray) -> Float[Array, "B V"]:
        """Reads the token that each row drew last; returns the logits after it."""
        logits, self._caches = self._run(
            ("advance", len(call)), self.weights, self._caches, self._memory.last, call
        )
        return logits  # type: ignore[no-any-return]

    def score(
        self, call: np.ndarray, length: int
    ) -> tuple[Float[Array, "T 3"], Float[Array, "1 V"]]:
        """Reads tokens of one row; returns what could follow each of them.

        That is the log-probability of the token that does, and of the likeliest one, and the number
        of the latter, which a float holds exactly. The tokens after each are in the columns behind
        the tokens. The logits after the last one are returned too.
        """
        key = ("score", length)
        scores, logits, self._caches = self._run(key, self.weights, self._caches, call)
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
        drawn, self._memory = self._run(
            ("draw", rows, kind), self._memory, self._sampling, masks, logits, call
        )
        return drawn  # type: ignore[no-any-return]

    def draw_many(self, call: np.ndarray, count: int, kind: DrawKind) -> Drawn:
        """Draws tokens of each row, one after the other."""
        drawn, self._caches, self._memory = self._run(
            ("draw_many", len(call), count, kind),
            self.weights,
            self._caches,
            self._memory,
            self._sampling,
            self._allowed,
            call,
        )
        return drawn  # type: ignore[no-any-return]

    def check_guesses(self, call: np.ndarray, length: int, kind: DrawKind) -> tuple[Drawn, Array]:
        """Reads the last token of each row and guesses of those after it; draws at each place.

        Returns:
            What was drawn, `[length, B]`, and how many of each row belong to its answer, `[B]`.
        """
        drawn, counts, self._caches, self._memory = self._run(
            ("check_guesses", len(call), length, kind),
            self.weights,
            self._caches,
            self._memory,
            self._sampling,
            self._allowed,
            call,
        )
        return drawn, counts

    def copy_page(self, source: int, target: int) -> None:
        """Copies a page of all caches."""
        self._caches = self._run(
            ("copy_page",), self._caches, np.asarray([source, target], np.int32)
        )

    def start_history(self, slot: int, text: np.ndarray, num_prompt: int) -> None:
        """Lets the penalties of a slot count the tokens of a text."""
        size = 1 << max(5, int(len(text) - 1).bit_length())
        padded = np.pad(text.astype(np.int32), (0, size - len(text)))[None]
        lengths = np.asarray([[num_prompt, len(text)]], np.int32)
        key = ("start_history", size)
        self._memory = self._run(key, self._memory, np.asarray([slot], np.int32), padded, lengths)

    def prepare(self, key: Hashable) -> None:
        """Compiles a program, in any thread; see `_lowered` for the keys."""
        self._program(key)

    def _run(self, key: Hashable, *args: Any) -> Any:
        start = time.perf_counter()
        results = self._program(key)(*args)
        self.device_seconds += time.perf_counter() - start
        return results

    def _program(self, key: Hashable) -> Any:
        found = self._compiled.get(key)
        if found is None:
            with use_policy(self._policy):
                found = self._lowered(key).compile(compiler_options=self._options)
            with self._lock:
                self.num_compiled += key not in self._compiled
                self._compiled[key] = found
        return found

    def _lowered(self, key: Any) -> Any:
        """Returns the program of a key: its name, and what decides its shapes."""
        name, *sizes = key
        caches, memory, rows = (_abstract(x) for x in (self._caches, self._memory, self._sampling))
        weights, allowed = _abstract(self.weights), _abstract(self._allowed)
        if name == "copy_page":
            return self._jit(copy_page, 0).lower(caches, _ints(2))
        if name == "start_history":
            return self._jit(start_history, 0).lower(
                memory, _ints(1), _ints(1, sizes[0]), _ints(1, 2)
            )
        if name == "score":
            width = NUM_COLUMNS + self._pages_per_row + 2 * sizes[0]
            return self._jit(self._score, 1).lower(weights, caches, _ints(1, width))
        batch = sizes[0]
        call = _ints(batch, NUM_COLUMNS + self._pages_per_row)
        if name == "read":
            width = NUM_COLUMNS + self._pages_per_row + sizes[1]
            return self._jit(self._read, 1).lower(weights, caches, _ints(batch, width))
        if name == "advance":
            last = memory.last
            return self._jit(self._advance, 1).lower(weights, caches, last, call)
        if name == "draw":
            logits = self._logits(batch)
            program = self._jit(_with(draw_rows, kind=sizes[1]), 0)
            masks = self._put(np.zeros((batch, allowed.shape[1]), np.uint32))
            return program.lower(memory, rows, _abstract(masks), logits, call)
        if name == "check_guesses":
            width = NUM_COLUMNS + self._pages_per_row + sizes[1]
            program = self._jit(_with(self._check_guesses, kind=sizes[2]), 1, 2)
            return program.lower(weights, caches, memory, rows, allowed, _ints(batch, width))
        program = self._jit(_with(self._draw_many, count=sizes[1], kind=sizes[2]), 1, 2)
        return program.lower(weights, caches, memory, rows, allowed, call)

    def _jit(self, function: Callable[..., Any], *donated: int) -> Any:
        name = function.__name__.strip("_")
        return jax.jit(function, donate_argnums=donated, out_shardings=self._outputs[name])

    def _logits(self, batch: int) -> Any:
        call = _ints(batch, NUM_COLUMNS + self._pages_per_row + 1)
        return jax.eval_shape(self._read, _abstract(self.weights), self._caches, call)[0]

    def _rows(self, call: Int[Array, "B columns"]) -> CallRows:
        return call_rows(call, self._pages_per_row)

    def _read(
        self, weights: Any, caches: Any, call: Int[Array, "B columns"]
    ) -> tuple[Float[Array, "B V"], Any]:
        rows = self._rows(call)
        return self._model.step(
            weights,
            caches,
            rows.tokens,
            rows.starts,
            rows.sizes,
            slots=rows.slots,
            page_table=rows.pages,
            adapters=rows.adapters if self._model.has_adapters else None,
        )

    def _score(
        self, weights: Any, caches: Any, call: Int[Array, "1 columns"]
    ) -> tuple[Float[Array, "T 3"], Float[Array, "1 V"], Any]:
        rows = self._rows(call)
        tokens, following = jnp.split(rows.tokens, 2, axis=1)
        places = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
        logits, caches = self._model.step_at(
            weights,
            caches,
            tokens,
            rows.starts,
            rows.sizes,
            at=places,
            slots=rows.slots,
            page_table=rows.pages,
            adapters=rows.adapters if self._model.has_adapters else None,
        )
        logprobs = jax.nn.log_softmax(logits[0].astype(jnp.float32), axis=1)
        follows = jnp.take_along_axis(logprobs, following[0][:, None], axis=1)[:, 0]
        likeliest = jnp.argmax(logprobs, axis=1).astype(jnp.float32)
        scores = jnp.stack([follows, jnp.max(logprobs, axis=1), likeliest], axis=1)
        return scores, logits[:, jnp.maximum(rows.sizes[0] - 1, 0)], caches

    def _advance(
        self, weights: Any, caches: Any, last: Int[Array, " S"], call: Int[Array, "B columns"]
    ) -> tuple[Float[Array, "B V"], Any]:
        tokens = jnp.take(last, call[:, 0], mode="clip")
        return self._read(weights, caches, jnp.concatenate([call, tokens[:, None]], axis=1))

    def _draw_many(
        self,
        weights: Any,
        caches: Any,
        memory: Memory,
        sampling: SamplingRows,
        allowed: UInt32[Array, "1 W"],
        call: Int[Array, "B columns"],
        *,
        count: int,
        kind: DrawKind,
    ) -> tuple[Drawn, Any, Memory]:
        rows = self._rows(call)

        def one(carry: Any, step: Array) -> Any:
            caches, memory = carry
            draws = (step < rows.sizes).astype(jnp.int32)
            last = jnp.take(memory.last, rows.slots, mode="clip")
            slots = jnp.where(draws > 0, rows.slots, memory.last.shape[0])
            logits, caches = self._model.step(
                weights,
                caches,
                last[:, None],
                (rows.starts + step) * draws,
                draws,
                slots=slots,
                page_table=rows.pages,
                adapters=rows.adapters if self._model.has_adapters else None,
            )
            here = rows._replace(slots=slots, first=rows.first + step, draws=draws)
            drawn, memory = drawn_tokens(memory, sampling, allowed, logits, here, kind=kind)
            return (caches, memory), drawn

        (caches, memory), drawn = jax.lax.scan(
            one, (caches, memory), jnp.arange(count, dtype=jnp.int32)
        )
        return drawn, caches, memory

    def _check_guesses(
        self,
        weights: Any,
        caches: Any,
        memory: Memory,
        sampling: SamplingRows,
        allowed: UInt32[Array, "1 W"],
        call: Int[Array, "B columns"],
        *,
        kind: DrawKind,
    ) -> tuple[Drawn, Int[Array, " B"], Any, Memory]:
        rows = self._rows(call)
        length, num_slots = rows.tokens.shape[1], memory.last.shape[0]
        places = jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), rows.tokens.shape)
        logits, caches = self._model.step_at(
            weights,
            caches,
            rows.tokens,
            rows.starts,
            rows.sizes,
            at=places,
            slots=rows.slots,
            page_table=rows.pages,
            adapters=rows.adapters if self._model.has_adapters else None,
        )
        held = jnp.minimum(rows.slots, num_slots - 1)
        tokens, counts = verify(
            logits,
            rows.tokens[:, 1:],
            sampling.take(held),
            first=rows.first,
            num_guesses=rows.sizes - 1,
            allowed=allowed,
            history=memory.history.take(held) if kind == "full" else None,
            kind=kind,
        )
        history = memory.history
        for place in range(length if kind == "full" else 0):
            taken = jnp.where((rows.draws > 0) & (place < counts), rows.slots, num_slots)
            history = history.drawn(taken, tokens[:, place])
        last = jnp.take_along_axis(tokens, counts[:, None] - 1, axis=1)[:, 0]
        slots = jnp.where(rows.draws > 0, rows.slots, num_slots)
        memory = Memory(memory.last.at[slots].set(last, mode="drop"), history)
        wanted = jnp.any(rows.wants_logprobs > 0)
        logprobs = [logprobs_of(logits[:, i], tokens[:, i], wanted) for i in range(length)]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *logprobs)
        return Drawn(tokens.T, stacked), counts, caches, memory


def _with(function: Callable[..., Any], **values: Any) -> Callable[..., Any]:
    def program(*args: Any) -> Any:
        return function(*args, **values)

    program.__name__ = getattr(function, "__name__", "program").strip("_")
    return program


def _ints(*shape: int) -> Any:
    return jax.eval_shape(lambda: jnp.zeros(shape, jnp.int32))


def _replicated(weights: Any) -> NamedSharding | None:
    """Returns how arrays lie that each device of the weights' mesh has; None without a mesh."""
    mesh = mesh_of(weights)
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]


def _output_shardings(everywhere: NamedSharding | None, caches: Any) -> dict[str, Any]:
    """Returns how the results of each program lie, by its name."""
    return {
        "read": (everywhere, caches),
        "advance": (everywhere, caches),
        "score": (everywhere, everywhere, caches),
        "draw_rows": (everywhere, everywhere),
        "draw_many": (everywhere, caches, everywhere),
        "check_guesses": (everywhere, everywhere, caches, everywhere),
        "copy_page": caches,
        "start_history": everywhere,
    }


def _abstract(tree: Any) -> Any:
    def abstract(leaf: Array) -> Any:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)  # type: ignore[no-untyped-call]

    return jax.tree.map(abstract, tree)
