"""The functions that an engine compiles: prefill, decode, sample, verify; pure, without an engine.

Letters of shapes: B rows of a call, P pages of a row, T tokens, V vocabulary, S slots, W words of a
mask.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from axcore.inference.cached_model import NUM_COLUMNS, ModelInput, model_input
from axcore.inference.request import MAX_LOGPROBS, SamplerKind
from axcore.inference.sampler import (
    LogProbs,
    SamplerState,
    SamplingRows,
    TokenHistory,
    WantedLogprobs,
    log_probabilities,
    processed_logits,
    row_keys,
    sample,
    scaled_logits,
)
from axcore.inference.speculation import AnyCachedModel, DraftedModel, verify_draft_tokens


class SamplerOutput(NamedTuple):
    """What a call drew, `[count, B]`; log-probabilities are 0 where no row wants any."""

    tokens: Array
    logprobs: LogProbs


class ModelFunctions:
    """Calls of a model that keeps what it read. Each returns the changed caches last.

    Args:
        model: The model with caches.
        pages_per_row: Pages of the longest text.
    """

    def __init__(self, model: AnyCachedModel, pages_per_row: int) -> None:
        self._model = model
        self._pages_per_row = pages_per_row

    def prefill(
        self, weights: Any, caches: Any, call: Int[Array, "B columns"]
    ) -> tuple[Float[Array, "B V"], Any]:
        """Read tokens of rows; returns the logits after the last one of each."""
        rows = self._rows(call)
        # A row that reads nothing has size 0; any place
        # is as good for it, and its logits are dropped.
        last = jnp.maximum(rows.sizes - 1, 0)[:, None]
        logits, caches = self._step(weights, caches, rows, at=last)
        return logits[:, 0], caches

    def decode(
        self, weights: Any, caches: Any, sampler_state: SamplerState, call: Int[Array, "B columns"]
    ) -> tuple[Float[Array, "B V"], Any]:
        """Read the token that each row drew last; returns the logits after it."""
        # `clip`: slots of filled-up rows are out of range. The token never visits
        # the host, so the next call can start before this one's result is read.
        tokens = jnp.take(sampler_state.last, call[:, 0], mode="clip")
        return self.prefill(weights, caches, jnp.concatenate([call, tokens[:, None]], axis=1))

    def score_prompt(
        self, weights: Any, caches: Any, call: Int[Array, "1 columns"]
    ) -> tuple[LogProbs, Float[Array, "1 V"], Any]:
        """Read tokens of a row; returns what could follow each, and the logits after the last."""
        rows = self._rows(call)
        tokens, following = jnp.split(rows.tokens, 2, axis=1)
        logits, caches = self._step_everywhere(weights, caches, rows._replace(tokens=tokens))
        scores = _scores_of(logits[0], following[0], rows.wants_logprobs[0])
        # The logits after the last token are returned too, so
        # that the same call can sample the first of the answer.
        return scores, logits[:, jnp.maximum(rows.sizes[0] - 1, 0)], caches

    def multi_step_decode(
        self,
        weights: Any,
        caches: Any,
        sampler_state: SamplerState,
        sampling: SamplingRows,
        allowed: UInt32[Array, "1 W"],
        call: Int[Array, "B columns"],
        *,
        count: int,
        kind: SamplerKind,
    ) -> tuple[SamplerOutput, Any, SamplerState]:
        """Sample tokens of each row, one after the other."""
        rows = self._rows(call)

        def one(carry: Any, step: Array) -> Any:
            caches, sampler_state = carry
            # Rows that may sample fewer tokens than the
            # call has steps stop early, without a branch.
            samples = (step < rows.sizes).astype(jnp.int32)
            last = jnp.take(sampler_state.last, rows.slots, mode="clip")
            here = rows._replace(
                slots=_sampling_slots(rows._replace(samples=samples), sampler_state),
                # 0 where a row has stopped, which keeps the place within its pages.
                starts=(rows.starts + step) * samples,
                sizes=samples,
                first=rows.first + step,
                samples=samples,
                tokens=last[:, None],
            )
            logits, caches = self._step(weights, caches, here, at=jnp.zeros_like(here.tokens))
            sampled, sampler_state = _sample_tokens(
                sampler_state, sampling, allowed, logits[:, 0], here, kind=kind
            )
            return (caches, sampler_state), sampled

        # `scan`, so that a program's size does not grow with the number of tokens.
        (caches, sampler_state), sampled = jax.lax.scan(
            one, (caches, sampler_state), jnp.arange(count, dtype=jnp.int32)
        )
        return sampled, caches, sampler_state

    def verify_draft_tokens(
        self,
        weights: Any,
        caches: Any,
        sampler_state: SamplerState,
        sampling: SamplingRows,
        allowed: UInt32[Array, "1 W"],
        call: Int[Array, "B columns"],
        *,
        kind: SamplerKind,
    ) -> tuple[SamplerOutput, Int[Array, " B"], Any, SamplerState]:
        """Read the last token of each row and its draft tokens; sample at each place.

        The draft tokens are those of the call, or those of the draft model, if there is one.
        """
        rows = self._rows(call)
        if isinstance(self._model, DraftedModel):
            rows, caches = self._model.with_draft_tokens(
                weights,
                caches,
                rows,
                sampler_state=sampler_state,
                sampling=sampling,
                allowed=allowed,
                kind=kind,
            )
        length, held = rows.tokens.shape[1], sampler_state.held(rows.slots)
        seen = sampler_state.history.take(held) if kind == "full" else None
        logits, caches = self._step_everywhere(weights, caches, rows)
        tokens, counts = verify_draft_tokens(
            logits,
            rows.tokens[:, 1:],
            sampling.take(held),
            first=rows.first,
            num_draft_tokens=rows.sizes - 1,
            allowed=allowed,
            history=seen,
            kind=kind,
        )
        slots = _sampling_slots(rows, sampler_state)
        history = sampler_state.history
        # A loop of Python over few places: each adds to the history only where it was accepted.
        for place in range(length if kind == "full" else 0):
            # Out of range where rejected, which `sampled` drops.
            taken = jnp.where(place < counts, slots, sampler_state.num_slots)
            history = history.sampled(taken, tokens[:, place])
        last = jnp.take_along_axis(tokens, counts[:, None] - 1, axis=1)[:, 0]
        sampler_state = sampler_state.drew(slots, last, history)
        logprobs = _logprobs_of_places(
            logits,
            tokens,
            rows.wants_logprobs,
            sampling.take(held),
            allowed=allowed,
            history=seen,
            kind=kind,
        )
        return SamplerOutput(tokens.T, logprobs), counts, caches, sampler_state

    def encode(
        self, weights: Any, caches: Any, inputs: Array, slots: Int[Array, " n"]
    ) -> tuple[Any]:
        """Keep the soft tokens of inputs, such as pictures, in some slots."""
        return (self._model.encode(weights, caches, inputs, slots),)

    def copy_page(self, caches: Any, pages: Int[Array, " 2"]) -> tuple[Any]:
        """Copy a page of all caches: from the first to the second."""

        def copied(held: Array, is_paged: bool) -> Array:
            # In place: the caches are donated to this program.
            return held.at[pages[1]].set(held[pages[0]]) if is_paged else held

        return (jax.tree.map(copied, caches, self._model.are_pages),)

    def _rows(self, call: Int[Array, "B columns"]) -> ModelInput:
        return model_input(call, self._pages_per_row)

    def _step_everywhere(
        self, weights: Any, caches: Any, rows: ModelInput
    ) -> tuple[Float[Array, "B T V"], Any]:
        places = jnp.arange(rows.tokens.shape[1], dtype=jnp.int32)
        at = jnp.broadcast_to(places, rows.tokens.shape)
        return self._step(weights, caches, rows, at=at)

    def _step(
        self, weights: Any, caches: Any, rows: ModelInput, *, at: Int[Array, "B N"]
    ) -> tuple[Float[Array, "B N V"], Any]:
        """Return float32 logits at some places of each row, and the caches with its tokens."""
        logits, caches = self._model.step_at(
            weights,
            caches,
            rows.tokens,
            rows.starts,
            rows.sizes,
            at=at,
            slots=rows.slots,
            page_table=rows.pages,
            adapters=rows.adapters if self._model.has_adapters else None,
        )
        return logits.astype(jnp.float32), caches


def sample_rows(
    sampler_state: SamplerState,
    sampling: SamplingRows,
    allowed: UInt32[Array, "#B W"],
    logits: Float[Array, "B V"],
    call: Int[Array, "B columns"],
    *,
    kind: SamplerKind,
) -> tuple[SamplerOutput, SamplerState]:
    """Return a token of each row of a call, `[1, B]`, and the memory with it."""
    rows = model_input(call, call.shape[1] - NUM_COLUMNS)
    sampled, sampler_state = _sample_tokens(
        sampler_state, sampling, allowed, logits, rows, kind=kind
    )
    return jax.tree.map(lambda leaf: leaf[None], sampled), sampler_state


def _sample_tokens(
    sampler_state: SamplerState,
    sampling: SamplingRows,
    allowed: UInt32[Array, "#B W"],
    logits: Float[Array, "B V"],
    rows: ModelInput,
    *,
    kind: SamplerKind,
) -> tuple[SamplerOutput, SamplerState]:
    """Return a token of each row, `[B]`, and the memory with it."""
    held = sampler_state.held(rows.slots)
    own = sampling.take(held)
    keys = row_keys(own.seed, rows.first)
    # Only the full kind has penalties; for others XLA drops the history's reads altogether.
    history = sampler_state.history.take(held) if kind == "full" else None
    tokens = sample(logits, own, keys, allowed=allowed, history=history, kind=kind)
    logprobs = _logprobs_of(
        logits, tokens, rows.wants_logprobs, own, allowed=allowed, history=history, kind=kind
    )
    slots = _sampling_slots(rows, sampler_state)
    counted = (
        sampler_state.history.sampled(slots, tokens) if kind == "full" else sampler_state.history
    )
    return SamplerOutput(tokens, logprobs), sampler_state.drew(slots, tokens, counted)


def _sampling_slots(rows: ModelInput, sampler_state: SamplerState) -> Int[Array, " B"]:
    """Return the slot of each row; one out of range where the row does not sample."""
    return jnp.where(rows.samples > 0, rows.slots, sampler_state.num_slots)


def _logprobs_of(
    logits: Float[Array, "B V"],
    tokens: Int[Array, " B"],
    wants: Int[Array, " B"],
    sampling: SamplingRows,
    *,
    allowed: UInt32[Array, "#B W"],
    history: TokenHistory | None,
    kind: SamplerKind,
) -> LogProbs:
    """Return log-probabilities of sampled tokens; zeros where no row wants any.

    Args:
        logits: As the model gave them.
        tokens: The sampled ones.
        wants: What each row wants; see `WantedLogprobs`.
        sampling: How each row samples, as for the other arguments of `sample`.
    """
    number = min(MAX_LOGPROBS, logits.shape[1])

    def processed() -> Array:
        # Computed again and not taken from the sampler: `cond` needs its operands in
        # memory, and the sampler's logits, fused with the noise, never are otherwise.
        changed = processed_logits(logits, sampling, allowed=allowed, history=history, kind=kind)
        is_processed = (wants & WantedLogprobs.PROCESSED) > 0
        return jnp.where(is_processed[:, None], scaled_logits(changed, sampling, kind=kind), logits)

    # Each is skipped where no row wants it: filters, a top-k over the vocabulary, all of it.
    def wanted() -> LogProbs:
        asked = _if_any(wants & WantedLogprobs.PROCESSED, processed, lambda: logits)
        return _if_any(
            wants & WantedLogprobs.TOP,
            lambda: log_probabilities(asked, tokens, number),
            lambda: _with_num_top(log_probabilities(asked, tokens, 0), number),
        )

    def unwanted() -> LogProbs:
        shape = jax.eval_shape(wanted)
        return LogProbs(*(jnp.zeros(leaf.shape, leaf.dtype) for leaf in shape))

    return _if_any(wants, wanted, unwanted)


def _logprobs_of_places(
    logits: Float[Array, "B T V"],
    tokens: Int[Array, "B T"],
    wants: Int[Array, " B"],
    sampling: SamplingRows,
    *,
    allowed: UInt32[Array, "#B W"],
    history: TokenHistory | None,
    kind: SamplerKind,
) -> LogProbs:
    """Return what `_logprobs_of` does for tokens sampled one after the other, `[T, B]`."""
    in_row, found = jnp.arange(len(tokens)), []
    # Place by place, so that `[B, V]` is in float32 once and not for all places.
    for place in range(tokens.shape[1]):
        here = tokens[:, place]
        found.append(
            _logprobs_of(
                logits[:, place],
                here,
                wants,
                sampling,
                allowed=allowed,
                history=history,
                kind=kind,
            )
        )
        if history is not None:
            # As if all were accepted: what follows a token that is not is thrown away.
            history = history.sampled(in_row, here)
    return LogProbs(*map(jnp.stack, zip(*found, strict=True)))


Result = TypeVar("Result")


def _if_any(wants: Array, wanted: Callable[[], Result], unwanted: Callable[[], Result]) -> Result:
    found: Result = jax.lax.cond(jnp.any(wants > 0), wanted, unwanted)
    return found


def _with_num_top(logprobs: LogProbs, number: int) -> LogProbs:
    """Return log-probabilities with zeros for those of likeliest tokens that are not there."""
    # Of one shape for both branches, which `cond` demands.
    fill = ((0, 0), (0, number - logprobs.top_tokens.shape[1]))
    return logprobs._replace(
        top_tokens=jnp.pad(logprobs.top_tokens, fill),
        top_logprobs=jnp.pad(logprobs.top_logprobs, fill),
    )


def _scores_of(
    logits: Float[Array, "T V"], following: Int[Array, " T"], wants: Int[Array, ""]
) -> LogProbs:
    """Return log-probabilities of tokens of a text; of the likeliest but one where none more is
    wanted, with zeros behind it.
    """
    number = min(MAX_LOGPROBS, logits.shape[1])
    return _if_any(
        wants & WantedLogprobs.TOP,
        lambda: log_probabilities(logits, following, number),
        lambda: _with_num_top(log_probabilities(logits, following, 1), number),
    )


def take_row(logits: Float[Array, "B V"], row: Int[Array, " 1"]) -> tuple[Float[Array, "1 V"]]:
    """Return the logits of one row."""
    return (jax.lax.dynamic_slice_in_dim(logits, row[0], 1),)


def start_history(
    sampler_state: SamplerState,
    slots: Int[Array, " 1"],
    tokens: Int[Array, "1 T"],
    lengths: Int[Array, "1 2"],
) -> tuple[SamplerState]:
    """Return the memory with a slot whose penalties count the tokens of a text."""
    return (
        sampler_state._replace(
            history=sampler_state.history.started(slots, tokens, lengths=lengths)
        ),
    )
