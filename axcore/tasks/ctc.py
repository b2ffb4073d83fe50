"""`CTC`: frames in, a shorter text out, without anybody saying which frame is of which token.

Also what its measures need: greedy decoding, and the edit distance of two sequences.

Letters: B rows, T frames, L tokens of a text, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from axcore.config import NonNegativeInt, config
from axcore.module import ArraySpec
from axcore.tasks.supervised import ROW_WEIGHTS, SupervisedTask

Tokens = Int[Array, "batch length"]
Lengths = Int[Array, " batch"]


class CTC(SupervisedTask):
    """Connectionist temporal classification: -log of the sum over all alignments of a text.

    The model returns logits `[B, T, V]` of each frame, and which frames are not padding, `[B, T]`.
    A frame says a token, or the blank; a text is what is left of its frames once equal neighbours
    are one and blanks are gone. The batch has the text's tokens and its mask, `TARGET` and
    `TARGET_mask`, as `axcore.data.Text` makes them. The loss is in nats a token of the text.

    A row with fewer frames than its text needs has no alignment. It counts in no loss, as its own
    would be infinite, and `unaligned` reports the share of such rows.

    Evaluations report `token_error_rate`, and `word_error_rate` where a token separates words:
    insertions, deletions and substitutions of the greedy text, divided by the length of the right
    one. Words are compared by a hash of 32 bits.

    Source: Graves et al. 2006, "Connectionist Temporal Classification", ICML, section 4.1; greedy
    decoding: section 3.2.
    """

    @config
    class Config(SupervisedTask.Config):
        """Describes `CTC`.

        Args:
            blank: The token of no sound. No text may contain it; texts of bytes have no
                byte 0.
            separator: The token between words, such as a space; None where there are no words.
        """

        inputs: tuple[str, ...] = ("sound", "sound_length")
        target: str = "text"
        blank: NonNegativeInt = 0
        separator: NonNegativeInt | None = None

    config: Config

    @property
    def arrays_read(self) -> tuple[str, ...]:
        """The arrays that a batch must have."""
        return (*super().arrays_read, self._mask_name)

    @property
    def _mask_name(self) -> str:
        return f"{self.config.target}_mask"

    def forward(self, batch: Mapping[str, Array]) -> None:
        """Add the loss and, in evaluations, the error rates."""
        cfg = self.config
        logits, is_frame = self.model(*[batch[name] for name in cfg.inputs])
        logits = logits.astype(jnp.float32)
        text, is_token = batch[cfg.target], batch[self._mask_name]
        weights = batch.get(ROW_WEIGHTS, jnp.ones(len(text), jnp.float32))
        lengths = jnp.sum(is_token, axis=1, dtype=jnp.int32)
        is_aligned = num_frames_needed(text, lengths) <= jnp.sum(is_frame, axis=1)
        nll = optax.ctc_loss(
            logits,
            1.0 - is_frame.astype(jnp.float32),
            text,
            1.0 - is_token.astype(jnp.float32),
            blank_id=cfg.blank,
        )
        used = jnp.where(is_aligned, weights, 0)
        total = jnp.sum(jnp.where(used > 0, nll, 0) * used)
        self.add_loss("ctc", total, jnp.sum(used * lengths.astype(jnp.float32)))
        self.add_measure("unaligned", jnp.sum(weights - used), jnp.sum(weights))
        # One step for each frame, one after the other: nothing that each training step should do.
        if not self.training:
            self._measure(greedy_labels(logits, is_frame, cfg.blank), (text, lengths), weights)

    def _measure(
        self,
        said: tuple[Tokens, Lengths],
        wanted: tuple[Tokens, Lengths],
        weights: Float[Array, " batch"],
    ) -> None:
        """Add the error rates."""
        self._add_rate("token_error_rate", said, wanted, weights)
        if self.config.separator is not None:
            separator = self.config.separator
            words = _words(*said, separator), _words(*wanted, separator)
            self._add_rate("word_error_rate", *words, weights)

    def _add_rate(
        self,
        name: str,
        said: tuple[Tokens, Lengths],
        wanted: tuple[Tokens, Lengths],
        weights: Float[Array, " batch"],
    ) -> None:
        errors, lengths = (
            one.astype(jnp.float32) for one in (edit_distance(*said, *wanted), wanted[1])
        )
        self.add_measure(name, jnp.sum(errors * weights), jnp.sum(lengths * weights))

    def metric_units(self) -> Mapping[str, str]:
        """Return the units of the loss and of the error rates."""
        units = {"loss": "nats a label", "token_error_rate": "of tokens", "unaligned": "of rows"}
        if self.config.separator is not None:
            units["word_error_rate"] = "of words"
        return units

    def check_result(self, result: Any, target: ArraySpec) -> None:
        """Check that there is a logit for the blank and for each token, in each frame."""
        logits, is_frame = result if isinstance(result, tuple) else (result, None)
        blank = self.config.blank
        needed = max(blank + 1, target.num_values or 0)
        if is_frame is None or logits.ndim != 3 or is_frame.shape != logits.shape[:2]:
            raise self._mismatch(
                "CTC needs a model that returns logits [rows, frames, tokens] and a mask [rows, "
                "frames]",
                "return (logits, is_frame), as CTCModel of axl-audio does",
            )
        if logits.shape[-1] < needed:
            raise self._mismatch(
                f"the model returns {logits.shape[-1]} logits, and tokens with the blank, {blank}, "
                f"are up to {needed - 1}",
                f"--set model.vocab_size={needed}",
            )


def num_frames_needed(text: Tokens, lengths: Lengths) -> Lengths:
    """Return how many frames each text has at least: equal neighbours need a blank in between."""
    is_repeated = (text[:, 1:] == text[:, :-1]) & _is_before(text[:, 1:], lengths - 1)
    return lengths + jnp.sum(is_repeated, axis=1, dtype=jnp.int32)


def greedy_labels(
    logits: Float[Array, "batch time vocab"], is_frame: Bool[Array, "batch time"], blank: int
) -> tuple[Tokens, Lengths]:
    """Return the text of the likeliest alignment: `[B, T]` tokens, and how many of them count.

    Args:
        logits: Of each frame.
        is_frame: Which frames are not padding.
        blank: The token that says nothing.
    """
    best = jnp.where(is_frame, jnp.argmax(logits, axis=-1).astype(jnp.int32), blank)
    before = jnp.pad(best[:, :-1], ((0, 0), (1, 0)), constant_values=blank)
    return _compacted(best, (best != blank) & (best != before))


def edit_distance(said: Tokens, num_said: Lengths, wanted: Tokens, num_wanted: Lengths) -> Lengths:
    """Return the insertions, deletions and substitutions that lead from one to the other.

    Source: Wagner and Fischer 1974, "The String-to-String Correction Problem".

    Args:
        said: `[B, N]`, what is compared.
        num_said: `[B]`, how many of it count.
        wanted: `[B, M]`, what it is compared with.
        num_wanted: `[B]`, how many of it count.
    """
    rows, size = wanted.shape
    places = jnp.arange(size + 1, dtype=jnp.int32)[None, :]

    def step(costs: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
        token, index = inputs
        substituted = costs[:, :-1] + (token[:, None] != wanted).astype(jnp.int32)
        inserted = costs[:, 1:] + 1
        found = jnp.concatenate([costs[:, :1] + 1, jnp.minimum(substituted, inserted)], axis=1)
        # The third way is from the left neighbour, by one more: the least over all to the left.
        found = jax.lax.cummin(found - places, axis=1) + places
        return jnp.where((index < num_said)[:, None], found, costs), None

    start = jnp.broadcast_to(places, (rows, size + 1))
    steps = (said.T, jnp.arange(said.shape[1], dtype=jnp.int32))
    costs, _ = jax.lax.scan(step, start, steps)
    return jnp.take_along_axis(costs, num_wanted[:, None], axis=1)[:, 0]


_HASH = 0x01000193
"""The prime of FNV-1 with 32 bits; it spreads the bits of each token over those of a word."""


def _words(tokens: Tokens, lengths: Lengths, separator: int) -> tuple[Tokens, Lengths]:
    """Return a number for each word of a text, equal for equal words, and how many words it has."""
    is_in_word = (tokens != separator) & _is_before(tokens, lengths)

    def step(state: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        token, is_inside = inputs
        state = jnp.where(is_inside, (state ^ token.astype(jnp.uint32)) * _HASH + 1, 0)
        return state, state

    start = jnp.zeros(tokens.shape[:1], jnp.uint32)
    _, hashes = jax.lax.scan(step, start, (tokens.T, is_in_word.T))
    is_last = is_in_word & ~jnp.pad(is_in_word[:, 1:], ((0, 0), (0, 1)))
    return _compacted(hashes.T.astype(jnp.int32), is_last)


def _is_before(tokens: Tokens, lengths: Lengths) -> Bool[Array, "batch length"]:
    return jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :] < lengths[:, None]


def _compacted(values: Tokens, is_kept: Bool[Array, "batch length"]) -> tuple[Tokens, Lengths]:
    """Return the values that are kept, in their order at the beginning, and how many they are."""
    order = jnp.argsort(~is_kept, axis=1, stable=True)
    return jnp.take_along_axis(values, order, axis=1), jnp.sum(is_kept, axis=1, dtype=jnp.int32)
