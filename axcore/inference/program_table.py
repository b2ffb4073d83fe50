"""`program_table`: the programs of an engine: what each takes, what it changes, and its shapes.

Letters of shapes: B rows of a call, P pages of a row, T tokens, V vocabulary, W words of a mask.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp

from axcore.inference.device_calls import (
    NUM_COLUMNS,
    copy_page,
    draw_rows,
    start_history,
)
from axcore.inference.model_calls import ModelCalls


@attrs.frozen(kw_only=True)
class Program:
    """A function that is compiled for some sizes, those in a key behind the program's name.

    Args:
        function: What it computes: of what it takes and of inputs, results and what it changes.
        takes: Names of what an engine holds.
        changes: Names of those among them that it gives back changed, its last results.
        inputs: Returns the shapes of the inputs by the sizes.
        options: Returns keywords of the function by the sizes.
    """

    function: Callable[..., Any]
    takes: tuple[str, ...]
    changes: tuple[str, ...]
    inputs: Callable[..., tuple[Any, ...]]
    options: Callable[..., dict[str, Any]] = lambda *_: {}

    def lowered(self, sizes: tuple[Any, ...], held: Mapping[str, Any], places: Any) -> Any:
        """Returns the program for some sizes, not yet compiled.

        Args:
            sizes: Of the key.
            held: What an engine holds, as shapes.
            places: How results lie, and by name what is changed.
        """
        options = self.options(*sizes)

        def program(*args: Any) -> Any:
            results = self.function(*args, **options)
            count = len(results) - len(self.changes)
            return tuple(results[:count]), tuple(results[count:])

        program.__name__ = getattr(self.function, "__name__", "program")
        results, changed = places
        jitted = jax.jit(
            program,
            donate_argnums=tuple(self.takes.index(name) for name in self.changes),
            out_shardings=(results, tuple(changed[name] for name in self.changes)),
        )
        return jitted.lower(*(held[name] for name in self.takes), *self.inputs(*sizes))


def program_table(
    calls: ModelCalls, *, pages_per_row: int, vocab_size: int, mask: Any
) -> dict[str, Program]:
    """Returns the programs by name, which is the first of a key; the others are:

    - `read`: rows and tokens of each; `score`: tokens of one row; `advance`: rows.
    - `draw`: rows and the kind of draw; `draw_many`: rows, tokens of each, and the kind;
      `check_guesses`: the same.
    - `copy_page`: none; `start_history`: tokens.

    Args:
        calls: Those of the model.
        pages_per_row: P.
        vocab_size: V.
        mask: Shape of what rows may draw, `[1, W]`.
    """
    columns = NUM_COLUMNS + pages_per_row
    model, drawing = ("weights", "caches"), ("memory", "sampling", "allowed")

    def call(rows: int, num_tokens: int = 0) -> Any:
        return _ints(rows, columns + num_tokens)

    def drawn_inputs(rows: int, _: Any) -> tuple[Any, ...]:
        masks = jax.ShapeDtypeStruct((rows, mask.shape[1]), mask.dtype, sharding=mask.sharding)  # type: ignore[no-untyped-call]
        logits = jax.ShapeDtypeStruct((rows, vocab_size), jnp.float32)  # type: ignore[no-untyped-call]
        return masks, logits, call(rows)

    return {
        "read": Program(
            function=calls.read,
            takes=model,
            changes=("caches",),
            inputs=lambda rows, length: (call(rows, length),),
        ),
        "score": Program(
            function=calls.score,
            takes=model,
            changes=("caches",),
            inputs=lambda length: (call(1, 2 * length),),
        ),
        "advance": Program(
            function=calls.advance,
            takes=(*model, "memory"),
            changes=("caches",),
            inputs=lambda rows: (call(rows),),
        ),
        "draw": Program(
            function=draw_rows,
            takes=("memory", "sampling"),
            changes=("memory",),
            inputs=drawn_inputs,
            options=lambda _, kind: {"kind": kind},
        ),
        "draw_many": Program(
            function=calls.draw_many,
            takes=model + drawing,
            changes=("caches", "memory"),
            inputs=lambda rows, count, kind: (call(rows),),
            options=lambda _, count, kind: {"count": count, "kind": kind},
        ),
        "check_guesses": Program(
            function=calls.check_guesses,
            takes=model + drawing,
            changes=("caches", "memory"),
            inputs=lambda rows, length, kind: (call(rows, length),),
            options=lambda _rows, _length, kind: {"kind": kind},
        ),
        "copy_page": Program(
            function=copy_page,
            takes=("caches",),
            changes=("caches",),
            inputs=lambda: (_ints(2),),
        ),
        "start_history": Program(
            function=start_history,
            takes=("memory",),
            changes=("memory",),
            inputs=lambda size: (_ints(1), _ints(1, size), _ints(1, 2)),
        ),
    }


def _ints(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)  # type: ignore[no-untyped-call]
