"""`Programs`: the compiled programs of an engine, and the arrays on the device that they change.

A program is compiled for a number of rows and of tokens (a bucket). All that a call says about its
rows comes as one array of whole numbers, so that a call costs one transfer.

Letters of shapes: B rows of a call, P pages of a row, T tokens, V vocabulary, S slots, W words of a
mask.
"""

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float, UInt32

from axcore.hardware.host_memory import use_large_pages
from axcore.inference.cached_model import NUM_COLUMNS, mesh_of
from axcore.inference.model_functions import (
    ModelFunctions,
    SamplerOutput,
    sample_rows,
    start_history,
    take_row,
)
from axcore.inference.request import EncoderSpec, SamplerKind
from axcore.inference.sampler import (
    LogProbs,
    SamplerState,
    SamplingRows,
    empty_history,
    greedy_rows,
)
from axcore.inference.speculation import AnyCachedModel
from axcore.inference.weights import ServedWeights, abstract, is_present
from axcore.ops import current_policy, use_policy
from axcore.parallel import put_everywhere
from axcore.plugins import wanted_compiler_options


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
        """Return the program for some sizes, not yet compiled.

        Args:
            sizes: Of the key.
            held: What an engine holds, as shapes.
            places: How results are sharded, and by name what is changed.
        """
        options = self.options(*sizes)

        def program(*args: Any) -> Any:
            results = self.function(*args, **options)
            count = len(results) - len(self.changes)
            return tuple(results[:count]), tuple(results[count:])

        program.__name__ = getattr(self.function, "__name__", "program")
        results, changed = places
        # What a program changes is donated: caches are most of the memory,
        # and there is no room for two. Its outputs get the shardings that
        # the inputs have, or their buffers could not be reused.
        jitted = jax.jit(
            # Named for profiles and dumps of the compiler,
            # which would otherwise show dozens of `program`.
            program,
            donate_argnums=tuple(self.takes.index(name) for name in self.changes),
            out_shardings=(results, tuple(changed[name] for name in self.changes)),
        )
        return jitted.lower(*(held[name] for name in self.takes), *self.inputs(*sizes))


def _ints(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)  # type: ignore[no-untyped-call]


def program_table(
    calls: ModelFunctions,
    *,
    pages_per_row: int,
    vocab_size: int,
    mask: Any,
    encoder: EncoderSpec | None = None,
) -> dict[str, Program]:
    """Return the programs by name, which is the first part of a key. The others are:

    - `prefill`: rows and tokens of each; `score_prompt`: tokens of one row; `decode`: rows.
    - `sample`: rows and the kind of sample; `multi_step_decode`: rows, tokens of each, and the
    kind; `verify_draft_tokens`: the same.
    - `take_row`: rows; `copy_page`: none; `start_history`: tokens; `encode`: none.

    Args:
        calls: Those of the model.
        pages_per_row: P.
        vocab_size: V.
        mask: Shape of what rows may sample, `[1, W]`.
        encoder: The model's, if it has one.
    """
    columns = NUM_COLUMNS + pages_per_row
    model, drawing = ("weights", "caches"), ("sampler_state", "sampling", "allowed")

    def call(rows: int, num_tokens: int = 0) -> Any:
        return _ints(rows, columns + num_tokens)

    def logits(rows: int) -> Any:
        return jax.ShapeDtypeStruct((rows, vocab_size), jnp.float32)  # type: ignore[no-untyped-call]

    def drawn_inputs(rows: int, _: Any) -> tuple[Any, ...]:
        masks = jax.ShapeDtypeStruct((rows, mask.shape[1]), mask.dtype, sharding=mask.sharding)  # type: ignore[no-untyped-call]
        return masks, logits(rows), call(rows)

    def encoded() -> tuple[Any, ...]:
        assert encoder is not None
        one = encoder.input
        return jax.ShapeDtypeStruct((1, *one.shape), one.dtype), _ints(1)  # type: ignore[no-untyped-call]

    return {
        "encode": Program(function=calls.encode, takes=model, changes=("caches",), inputs=encoded),
        "prefill": Program(
            function=calls.prefill,
            takes=model,
            changes=("caches",),
            inputs=lambda rows, length: (call(rows, length),),
        ),
        "score_prompt": Program(
            function=calls.score_prompt,
            takes=model,
            changes=("caches",),
            inputs=lambda length: (call(1, 2 * length),),
        ),
        "decode": Program(
            function=calls.decode,
            takes=(*model, "sampler_state"),
            changes=("caches",),
            inputs=lambda rows: (call(rows),),
        ),
        "sample": Program(
            function=sample_rows,
            takes=("sampler_state", "sampling"),
            changes=("sampler_state",),
            inputs=drawn_inputs,
            options=lambda _, kind: {"kind": kind},
        ),
        "multi_step_decode": Program(
            function=calls.multi_step_decode,
            takes=model + drawing,
            changes=("caches", "sampler_state"),
            inputs=lambda rows, count, kind: (call(rows),),
            options=lambda _, count, kind: {"count": count, "kind": kind},
        ),
        "verify_draft_tokens": Program(
            function=calls.verify_draft_tokens,
            takes=model + drawing,
            changes=("caches", "sampler_state"),
            inputs=lambda rows, length, kind: (call(rows, length),),
            options=lambda _rows, _length, kind: {"kind": kind},
        ),
        "take_row": Program(
            function=take_row,
            takes=(),
            changes=(),
            inputs=lambda rows: (logits(rows), _ints(1)),
        ),
        "copy_page": Program(
            function=calls.copy_page,
            takes=("caches",),
            changes=("caches",),
            inputs=lambda: (_ints(2),),
        ),
        "start_history": Program(
            function=start_history,
            takes=("sampler_state",),
            changes=("sampler_state",),
            inputs=lambda size: (_ints(1), _ints(1, size), _ints(1, 2)),
        ),
    }


class CompiledPrograms:
    """Compiles programs, in any thread, for the policy that it was made under.

    Args:
        lowered: Returns the program of a key, not yet compiled.

    Attributes:
        num_compiled: Programs compiled so far.
        num_waited_for: Those of them that a call waited for.
    """

    def __init__(self, lowered: Callable[[Any], Any]) -> None:
        self.num_compiled = 0
        self.num_waited_for = 0
        self._lowered = lowered
        self._found: dict[Hashable, Any] = {}
        self._lock = threading.Lock()
        # Captured here: threads of the warm-up start with no context
        # of ours, and a program must not depend on who compiles it.
        self._policy = current_policy()
        self._options = dict(wanted_compiler_options(self._policy.hardware, serves=True)) or None

    def prepare(self, key: Hashable) -> Any:
        """Return the program of a key; compiles it if nobody did."""
        # Without the lock: reading a dict is atomic, and this is on the way of every call.
        found = self._found.get(key)
        if found is not None:
            return found
        with use_policy(self._policy):
            # Compiled outside of the lock, several at once. Two
            # threads may compile the same key; one result is kept.
            found = self._lowered(key).compile(compiler_options=self._options)
        with self._lock:
            self.num_compiled += key not in self._found
            # `setdefault`: all callers must get one program, or a result
            # of one would be compiled against the other's layouts.
            return self._found.setdefault(key, found)

    def of_call(self, key: Hashable) -> Any:
        """Return what `prepare` does, for a call that needs it now."""
        found = self._found.get(key)
        if found is None:
            # Counted before it is compiled, so that metrics show a stall while it lasts.
            self.num_waited_for += 1
            found = self.prepare(key)
        return found


_MIN_LARGE_PAGE_BYTES = 1 << 18
"""Bytes from which on large pages are worth it."""


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
        encoder: What is known of the model's encoder, if it has one.
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
        # They stay here, so that what a call is given is host values
        # alone, which can be said to other processes.
        self._logits: Float[Array, "B V"] | None = None
        self._prompt_logits: dict[bytes, Float[Array, "1 V"]] = {}
        self._held: dict[str, Any] = {
            "caches": model.empty_caches(),
            **self._put(sampler_values(model.num_rows, allowed, self.vocab_size)),
        }
        _use_large_pages((self.weights.value, self.caches))
        # Shapes are kept because the arrays themselves are donated with every call.
        self._shapes = abstract({**self._held, "weights": self.weights.value})
        self._places = {"caches": model.cache_shardings, "sampler_state": self._everywhere}
        # After the caches are made, since their shardings are part of it.
        self._table = program_table(
            ModelFunctions(model, pages_per_row),
            pages_per_row=pages_per_row,
            vocab_size=self.vocab_size,
            mask=self._shapes["allowed"],
            encoder=model.encoder,
        )
        self.encoder = model.encoder
        self.compiled = CompiledPrograms(self._lowered)

    @property
    def caches(self) -> Any:
        """The KV cache, and other state of layers."""
        return self._held["caches"]

    def replace_weights(self, state: Any, *, is_partial: bool = False) -> None:
        """Replace the weights, or some; see `ServedWeights.replace`."""
        # The last call holds the old weights until it ends: without waiting for it, none of them is
        # freed while the new ones arrive, and the device needs room for both.
        # Caches are an output of the last call, so they are ready when it is done.
        for leaf in jax.tree.leaves(self.caches):
            leaf.block_until_ready()
        self.weights.replace(state, is_partial=is_partial)
        _use_large_pages(self.weights.value)

    def set_sampling(self, sampling: SamplingRows) -> None:
        """Set the sampling settings of each slot, `[S]`."""
        start = time.perf_counter()
        # Copies, as the runtime may read host arrays later, or use them in place: the caller writes
        # into its own while calls that were started with these still run.
        copies = (np.array(value) for value in sampling)
        self._held["sampling"] = self._put(SamplingRows(*copies))
        self.device_seconds += time.perf_counter() - start

    def prefill(self, call: np.ndarray, length: int) -> None:
        """Read tokens of rows, for the logits after the last one of each."""
        self._logits = None
        (self._logits,) = self._run(("prefill", len(call), length), call)

    def decode(self, call: np.ndarray) -> None:
        """Read the token that each row sampled last, for the logits after it."""
        self._logits = None
        (self._logits,) = self._run(("decode", len(call)), call)

    def score_prompt(self, call: np.ndarray, length: int) -> LogProbs:
        """Read tokens of one row; return the log-probabilities of those after them, `[T]` and `[T,
        n]`.

        The tokens after each are in the columns behind the tokens. Of the likeliest only the first
        is there where the row wants no log-probabilities of its answer. The logits after the last
        token are there afterwards, as those of `prefill` are.
        """
        self._logits = None
        scores, self._logits = self._run(("score_prompt", length), call)
        return scores  # type: ignore[no-any-return]

    def keep_logits(self, row: int, prompt: bytes) -> None:
        """Keep a row of the last logits, until `forget_logits`, under the digest of its prompt."""
        logits = self._logits
        assert logits is not None
        if len(logits) > 1:
            (logits,) = self._run(("take_row", len(logits)), logits, np.asarray([row], np.int32))
        self._prompt_logits[prompt] = logits

    def forget_logits(self, prompt: bytes) -> None:
        """Drop what `keep_logits` kept."""
        del self._prompt_logits[prompt]

    def sample(
        self,
        call: np.ndarray,
        kind: SamplerKind,
        *,
        allowed: UInt32[np.ndarray, "B W"] | None = None,
        prompt: bytes | None = None,
    ) -> SamplerOutput:
        """Sample a token of each row from the last logits.

        Args:
            call: The rows; see `ModelInput`.
            kind: What the program can do.
            allowed: Packed bits of the tokens that each row may sample; None allows all of the
                text.
            prompt: Sample from the logits that were kept under its digest.
        """
        rows = len(call)
        if allowed is None and rows not in self._allowed_rows:
            # Kept for each number of rows: to send it with every call would cost a transfer each.
            whole = np.repeat(self.allowed, rows, axis=0)
            self._allowed_rows[rows] = self._put(whole)
        masks = self._allowed_rows[rows] if allowed is None else allowed
        logits = self._logits if prompt is None else self._prompt_logits[prompt]
        (sampled,) = self._run(("sample", rows, kind), masks, logits, call)
        return sampled  # type: ignore[no-any-return]

    def multi_step_decode(self, call: np.ndarray, count: int, kind: SamplerKind) -> SamplerOutput:
        """Sample tokens of each row, one after the other."""
        (sampled,) = self._run(("multi_step_decode", len(call), count, kind), call)
        return sampled  # type: ignore[no-any-return]

    def verify_draft_tokens(
        self, call: np.ndarray, length: int, kind: SamplerKind
    ) -> tuple[SamplerOutput, Array]:
        """Read the last token of each row and its draft tokens; sample at each place.

        Returns:
            What was sampled, `[length, B]`, and how many of each row belong to its answer, `[B]`.
        """
        sampled, counts = self._run(("verify_draft_tokens", len(call), length, kind), call)
        return sampled, counts

    def encode(self, value: np.ndarray, slot: int) -> None:
        """Encode an input, such as a picture, and keep its soft tokens in a slot."""
        self._run(("encode",), value[None], np.asarray([slot], np.int32))

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page of all caches."""
        # Numbers as an array: as Python numbers they would
        # be constants, and each pair a program of its own.
        self._run(("copy_page",), np.asarray([source, target], np.int32))

    def start_history(self, slot: int, text: np.ndarray, num_prompt: int) -> None:
        """Let the penalties of a slot count the tokens of a text."""
        # Padded to one length, so that there is one program.
        padded = np.pad(text.astype(np.int32), (0, self._max_length - len(text)))[None]
        lengths = np.asarray([[num_prompt, len(text)]], np.int32)
        self._run(
            ("start_history", self._max_length), np.asarray([slot], np.int32), padded, lengths
        )

    def _put(self, tree: Any) -> Any:
        return put_everywhere(tree, self._everywhere)

    def _run(self, key: Hashable, *inputs: Any) -> tuple[Any, ...]:
        start = time.perf_counter()
        program = self._table[key[0]]  # type: ignore[index]
        # Made at each call, as weights may have been replaced.
        held = {**self._held, "weights": self.weights.value}
        taken = (held[name] for name in program.takes)
        # What a program changes is donated: its buffers are overwritten in place, and the old
        # arrays are invalid once the call has started. So nothing else may hold them, and the new
        # ones take their place here before anything else runs.
        try:
            results, changed = self.compiled.of_call(key)(*taken, *inputs)
        except Exception:
            # Says more clearly what is wrong, where that is why.
            self.weights.check_present()
            raise
        self._held.update(zip(program.changes, changed, strict=True))
        self.device_seconds += time.perf_counter() - start
        return results  # type: ignore[no-any-return]

    def _lowered(self, key: Any) -> Any:
        """Return the program of a key: its name, and the sizes that it is made for."""
        name, *sizes = key
        places = self._everywhere, self._places
        return self._table[name].lowered(tuple(sizes), self._shapes, places)


def sampler_values(
    num_slots: int, allowed: UInt32[np.ndarray, "1 W"], vocab_size: int
) -> dict[str, Any]:
    """Return the arrays of the sampler, by the names in `program_table`."""
    return {
        "sampler_state": SamplerState(
            jnp.zeros(num_slots, jnp.int32), empty_history(num_slots, vocab_size)
        ),
        "sampling": greedy_rows(num_slots),
        "allowed": allowed,
    }


def _replicated(weights: Any) -> NamedSharding | None:
    """Return the sharding of arrays that every device of the mesh has; None without a mesh."""
    mesh = mesh_of(weights)
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]


def _use_large_pages(arrays: Any) -> None:
    """Keep arrays in the memory of the host in large pages, but for small ones."""
    use_large_pages(
        (part.unsafe_buffer_pointer(), part.nbytes)
        for leaf in jax.tree.leaves(arrays)
        if is_present(leaf)
        for part in _parts(leaf)
        if part.nbytes >= _MIN_LARGE_PAGE_BYTES
    )


def _parts(leaf: Array) -> list[Array]:
    """Return the parts of an array on the devices of the host."""
    if any(device.platform != "cpu" for device in leaf.devices()):
        return []
    if len(leaf.devices()) == 1:
        return [leaf]
    # Those of this host; others have processes of their own.
    return [shard.data for shard in leaf.addressable_shards]
