"""The sampler: a token for each row, by the row's own settings and its own random key.

In this order: penalties, logit bias, masks of allowed tokens, temperature, top-k, top-p, min-p. A
filter keeps the tokens whose logit is at least a row's threshold, which is found bit by bit, from
counts and sums over the row: no sort, and tokens that are equally likely are kept or dropped
together. Masks are packed bits: token t is bit `t % 32` of word `t // 32`.

Letters of shapes: B rows, V vocabulary, W words of 32 tokens, n likeliest tokens, S slots, T
tokens.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int, UInt32

from axcore.data import Tokenizer
from axcore.inference.request import MAX_BIASES, SamplerKind, Sampling


class WantedLogprobs(enum.IntFlag):
    """The log-probabilities that a row wants; 0 wants none."""

    SAMPLED = 1
    """That of the sampled token."""
    TOP = 2
    """Those of the likeliest tokens, too."""
    PROCESSED = 4
    """By the distribution that is sampled from, not by the model alone."""


class LogProbs(NamedTuple):
    """Log-probabilities of tokens; by the model alone, or as `WantedLogprobs.PROCESSED`.

    Args:
        sampled: Of the sampled token.
        top_tokens: The likeliest tokens, the likeliest first.
        top_logprobs: Theirs.
    """

    sampled: Float[Array, " B"]
    top_tokens: Int[Array, "B n"]
    top_logprobs: Float[Array, "B n"]


# The largest int32, so one comparison serves rows with and without a limit.
_ALL_TOKENS = np.iinfo(np.int32).max
"""The `top_k` of a row that samples from all tokens."""


_NO_TOKEN = np.iinfo(np.int32).max
"""Fills the biases up; it is out of any vocabulary."""


class SamplingRows(NamedTuple):
    """How each row's token is sampled; arrays of numpy or jax.

    Args:
        temperature: See `Sampling`, as for all names of it.
        top_k: `_ALL_TOKENS` where None.
        top_p: See `Sampling`.
        min_p: See `Sampling`.
        repetition_penalty: See `Sampling`.
        presence_penalty: See `Sampling`.
        frequency_penalty: See `Sampling`.
        bias_tokens: The tokens of `logit_bias`, filled up with `_NO_TOKEN`.
        biases: Their biases.
        seed: The low and the high 32 bits of each row's seed.
    """

    temperature: Float[Any, " B"]
    top_k: Int[Any, " B"]
    top_p: Float[Any, " B"]
    min_p: Float[Any, " B"]
    repetition_penalty: Float[Any, " B"]
    presence_penalty: Float[Any, " B"]
    frequency_penalty: Float[Any, " B"]
    bias_tokens: Int[Any, "B N"]
    biases: Float[Any, "B N"]
    seed: UInt32[Any, "B 2"]

    def set_row(self, row: int, sampling: Sampling, *, seed: int = 0) -> None:
        """Write the settings of one request into a row of arrays of numpy."""
        for name in self._fields[:7]:
            # None needs a number, and 0 means the same to clients.
            if name != "top_k":
                getattr(self, name)[row] = getattr(sampling, name)
        self.top_k[row] = min(sampling.top_k or _ALL_TOKENS, _ALL_TOKENS)
        # No filter drops the likeliest token. Without them the log-probabilities
        # of the row are the same by every kind of program, whoever else is in it.
        if sampling.temperature == 0:
            self.top_k[row], self.top_p[row], self.min_p[row] = _ALL_TOKENS, 1, 0
        # Cleared first: the slot's former request may have had more biases.
        self.bias_tokens[row] = _NO_TOKEN
        self.biases[row] = 0
        for place, (token, bias) in enumerate(sampling.logit_bias):
            self.bias_tokens[row, place], self.biases[row, place] = token, bias
        # Two words: jax without x64 has no 64-bit integers, and keys are made from 32-bit ones.
        self.seed[row] = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF

    def take(self, rows: Any) -> "SamplingRows":
        """Return the settings of some rows, in the order of their numbers."""
        return SamplingRows(*(value[rows] for value in self))


def greedy_rows(num_rows: int) -> SamplingRows:
    """Return rows of numpy that take the likeliest token, to be set one by one."""
    one, zero = np.ones(num_rows, np.float32), np.zeros(num_rows, np.float32)
    return SamplingRows(
        temperature=zero,
        top_k=np.full(num_rows, _ALL_TOKENS, np.int32),
        top_p=one,
        min_p=zero.copy(),
        repetition_penalty=one.copy(),
        presence_penalty=zero.copy(),
        frequency_penalty=zero.copy(),
        bias_tokens=np.full((num_rows, MAX_BIASES), _NO_TOKEN, np.int32),
        biases=np.zeros((num_rows, MAX_BIASES), np.float32),
        seed=np.zeros((num_rows, 2), np.uint32),
    )


def sampling_rows(samplings: list[Sampling], seeds: list[int] | None = None) -> SamplingRows:
    """Return the settings of several requests."""
    rows = greedy_rows(len(samplings))
    for row, sampling in enumerate(samplings):
        rows.set_row(row, sampling, seed=seeds[row] if seeds else 0)
    return rows


def row_keys(seed: UInt32[Array, "B 2"], index: Int[Array, " B"]) -> Array:
    """Return a random key a row, for token `index` of the answer to a request with that seed."""

    def key_of(words: Array, index: Array) -> Array:
        # Folded from seed and place alone, never from the slot or the batch: a
        # request gets the same tokens whoever else is served, and after a preemption.
        key = jax.random.fold_in(jax.random.key(words[0]), words[1])
        return jax.random.fold_in(key, index)

    return jax.vmap(key_of)(jnp.asarray(seed), index)


class TokenHistory(NamedTuple):
    """Counts of tokens, a row for each slot. Methods return a changed copy.

    Args:
        is_prompted: Whether the prompt has a token.
        num_sampled: How often the answer so far has it.
    """

    is_prompted: Bool[Array, "S V"]
    num_sampled: Int[Array, "S V"]

    def take(self, slots: Int[Array, " B"]) -> "TokenHistory":
        """Return the rows of some slots."""
        return TokenHistory(self.is_prompted[slots], self.num_sampled[slots])

    def started(
        self, slots: Int[Array, " B"], tokens: Int[Array, "B T"], *, lengths: Int[Array, "B 2"]
    ) -> "TokenHistory":
        """Return the histories with those of some slots that begin again.

        Args:
            slots: Where the texts are; one out of range is left out.
            tokens: Prompt and answer so far of each, filled up with any.
            lengths: Number of tokens of the prompt, and of both.
        """
        place = jnp.arange(tokens.shape[1])[None, :]
        in_prompt = place < lengths[:, :1]
        in_answer = ~in_prompt & (place < lengths[:, 1:])
        cleared = TokenHistory(
            self.is_prompted.at[slots].set(False, mode="drop"),
            # `drop`: programs run with more rows than there are requests,
            # and those that are filled up have slots out of range.
            self.num_sampled.at[slots].set(0, mode="drop"),
        )
        rows = slots[:, None]
        return TokenHistory(
            cleared.is_prompted.at[rows, _kept(tokens, in_prompt)].set(True, mode="drop"),
            cleared.num_sampled.at[rows, _kept(tokens, in_answer)].add(1, mode="drop"),
        )

    def sampled(self, slots: Int[Array, " B"], tokens: Int[Array, " B"]) -> "TokenHistory":
        """Return the histories with a sampled token more in some slots; those out of range drop."""
        return self._replace(num_sampled=self.num_sampled.at[slots, tokens].add(1, mode="drop"))


def empty_history(num_slots: int, vocab_size: int) -> TokenHistory:
    """Return histories of texts without a token."""
    shape = (num_slots, vocab_size)
    return TokenHistory(jnp.zeros(shape, bool), jnp.zeros(shape, jnp.int32))


def _kept(tokens: Int[Array, "B T"], is_kept: Bool[Array, "B T"]) -> Int[Array, "B T"]:
    """Return tokens, out of any vocabulary where they are not kept."""
    return jnp.where(is_kept, tokens, _NO_TOKEN)


def sample(
    logits: Float[Array, "B V"],
    rows: SamplingRows,
    keys: Array,
    *,
    allowed: UInt32[ArrayLike, "#B W"] | None = None,
    history: TokenHistory | None = None,
    kind: SamplerKind = "full",
) -> Int[Array, " B"]:
    """Return a token of each row, sampled by Gumbel noise (the largest of logits plus noise).

    A row's token depends on its own logits, settings and key alone.

    Args:
        logits: Of any float dtype; what follows is computed in float32.
        rows: How each row samples.
        keys: A random key a row; see `row_keys`.
        allowed: Packed bits of the tokens that may be sampled, one row for all or one for each; see
            `packed_mask`. None allows all.
        history: What penalties count, a row of it for each row here; None penalizes nothing.
        kind: What the program can do. A row whose settings it lacks is sampled without them, so
            choose it by `kind_for`.
    """
    changed = processed_logits(logits, rows, allowed=allowed, history=history, kind=kind)
    top_tokens = _argmax(changed)
    if kind == "greedy":
        return top_tokens
    scaled = scaled_logits(changed, rows, kind=kind)
    noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:], jnp.float32))(keys)
    # Gumbel noise plus argmax samples the softmax without normalising or sorting.
    sampled = _argmax(scaled + noise)
    # Both are computed: rows of one batch may differ, and a branch by row does not exist.
    return jnp.where(rows.temperature > 0, sampled, top_tokens)


def _argmax(x: Float[Array, "B V"]) -> Int[Array, " B"]:
    """Return what `jnp.argmax` does, in a sixth of its time on a CPU.

    A largest value and a least number are found by vector instructions, a pair of both is not.
    """
    # nan counts as largest, as in `jnp.argmax`, so that
    # damaged logits are seen as such and not as token 0.
    is_largest = (x == jnp.max(x, axis=1, keepdims=True)) | jnp.isnan(x)
    numbers = jnp.arange(x.shape[1], dtype=jnp.int32)[None, :]
    return jnp.min(jnp.where(is_largest, numbers, x.shape[1]), axis=1)


def processed_logits(
    logits: Float[Array, "B V"],
    rows: SamplingRows,
    *,
    allowed: UInt32[ArrayLike, "#B W"] | None = None,
    history: TokenHistory | None = None,
    kind: SamplerKind = "full",
) -> Float[Array, "B V"]:
    """Return logits after penalties, biases and the mask; the arguments are those of `sample`."""
    # Penalties and temperatures of bfloat16 logits would collapse neighbours into ties.
    logits = jnp.asarray(logits, jnp.float32)
    if kind == "full":
        logits = logits if history is None else _penalize(logits, rows, history)
        logits = _add_bias(logits, rows)
    return logits if allowed is None else _mask_logits(logits, jnp.asarray(allowed))


def scaled_logits(
    changed: Float[Array, "B V"], rows: SamplingRows, *, kind: SamplerKind = "full"
) -> Float[Array, "B V"]:
    """Return logits whose softmax is the distribution that rows with a temperature sample from.

    Args:
        changed: What `processed_logits` returned.
        rows: How each row samples; a temperature of 0 counts as 1.
        kind: Whether there are filters.
    """
    temperature = jnp.where(rows.temperature > 0, rows.temperature, 1.0)[:, None]
    # The largest becomes 0, so a tiny temperature gives
    # minus infinity and never an overflow of all.
    scaled = (changed - jnp.max(changed, axis=1, keepdims=True)) / temperature
    return _filter_tokens(scaled, rows) if kind == "full" else scaled


def log_probabilities(
    logits: Float[Array, "B V"], tokens: Int[Array, " B"], num_top: int
) -> LogProbs:
    """Return the log-probabilities of tokens and of the likeliest.

    Args:
        logits: As the model gave them, or those of `scaled_logits`.
        tokens: The sampled ones.
        num_top: How many of the likeliest to return; 0 costs no search for them.
    """
    whole = jax.nn.log_softmax(logits.astype(jnp.float32), axis=1)
    sampled = jnp.take_along_axis(whole, tokens[:, None], axis=1)[:, 0]
    top_logprobs, top_tokens = jax.lax.top_k(whole, num_top)
    return LogProbs(sampled, top_tokens.astype(jnp.int32), top_logprobs)


def _penalize(
    logits: Float[Array, "B V"], rows: SamplingRows, history: TokenHistory
) -> Float[Array, "B V"]:
    """Return logits with the repetition penalty, then the frequency and the presence penalty.

    Source: Keskar et al. 2019, arXiv:1909.05858, section 4.1, for the repetition penalty; the
    others are those of OpenAI's interface.
    """
    is_repeated = history.is_prompted | (history.num_sampled > 0)
    penalty = rows.repetition_penalty[:, None]
    # Division makes a positive logit smaller, and a negative one larger; hence the two cases.
    weakened = jnp.where(logits > 0, logits / penalty, logits * penalty)
    logits = jnp.where(is_repeated, weakened, logits)
    counts = history.num_sampled.astype(logits.dtype)
    logits = logits - rows.frequency_penalty[:, None] * counts
    penalized: Array = logits - rows.presence_penalty[:, None] * jnp.minimum(counts, 1)
    return penalized


def _add_bias(logits: Float[Array, "B V"], rows: SamplingRows) -> Float[Array, "B V"]:
    """Return logits with each row's biases; takes no time where no row has one."""
    at = jnp.arange(logits.shape[0])[:, None]

    def added() -> Array:
        return logits.at[at, rows.bias_tokens].add(rows.biases, mode="drop")

    # A scatter into `[rows, vocabulary]`, which few requests need.
    biased: Array = jax.lax.cond(jnp.any(rows.biases != 0), added, lambda: logits)
    return biased


def _filter_tokens(scaled: Float[Array, "B V"], rows: SamplingRows) -> Float[Array, "B V"]:
    """Return logits that are minus infinity where a filter drops the token.

    Args:
        scaled: Logits, divided by the temperature; 0 for the likeliest.
        rows: The settings; a filter takes no time where no row has it.
    """
    size = scaled.shape[1]
    scaled = _where_any(rows.top_k < size, lambda: _top_k(scaled, rows.top_k), scaled)
    scaled = _where_any(rows.top_p < 1, lambda: _top_p(scaled, rows.top_p), scaled)
    # The likeliest token is at 0, so the threshold is the logarithm alone.
    lowest = jnp.log(rows.min_p)[:, None]
    return jnp.where(scaled < lowest, -jnp.inf, scaled)


def _where_any(is_on: Bool[Array, " B"], filtered: Callable[[], Array], logits: Array) -> Array:
    left: Array = jax.lax.cond(jnp.any(is_on), filtered, lambda: logits)
    return left


def _top_k(logits: Float[Array, "B V"], top_k: Int[Array, " B"]) -> Float[Array, "B V"]:
    def is_enough(is_kept: Bool[Array, "B V"]) -> Bool[Array, " B"]:
        return jnp.sum(is_kept, axis=1) >= top_k

    return _largest(logits, is_enough, top_k < logits.shape[1])


def _top_p(logits: Float[Array, "B V"], top_p: Float[Array, " B"]) -> Float[Array, "B V"]:
    probabilities = jax.nn.softmax(logits, axis=1)

    def is_enough(is_kept: Bool[Array, "B V"]) -> Bool[Array, " B"]:
        return jnp.sum(jnp.where(is_kept, probabilities, 0), axis=1) >= top_p

    return _largest(logits, is_enough, top_p < 1)


def _largest(
    logits: Float[Array, "B V"],
    is_enough: Callable[[Bool[Array, "B V"]], Bool[Array, " B"]],
    is_on: Bool[Array, " B"],
) -> Float[Array, "B V"]:
    """Return the fewest largest logits that are enough, where the filter is on."""
    ordered = _ordered(logits)

    def with_bit(place: Array, threshold: UInt32[Array, " B"]) -> UInt32[Array, " B"]:
        higher = threshold | (jnp.uint32(1) << (31 - place).astype(jnp.uint32))
        return jnp.where(is_enough(ordered >= higher[:, None]), higher, threshold)

    start = jnp.zeros(logits.shape[:1], jnp.uint32)
    # The threshold bit by bit, from the highest, by comparisons alone: the vocabulary
    # is never sorted, and `lax.top_k` would need its k when it is compiled.
    threshold = jax.lax.fori_loop(0, 32, with_bit, start)
    is_dropped = is_on[:, None] & (ordered < threshold[:, None])
    return jnp.where(is_dropped, -jnp.inf, logits)


def _ordered(logits: Float[Array, "B V"]) -> UInt32[Array, "B V"]:
    """Return whole numbers in the order of the logits."""
    # `+ 0.0` turns -0.0 into 0.0, whose bits would otherwise be ordered apart. Positive
    # floats are ordered as their bits are; negative ones in reverse, hence the complement.
    bits = jax.lax.bitcast_convert_type(logits.astype(jnp.float32) + 0.0, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)


WORD = 32
"""Tokens of a word."""


def packed_mask(allowed: Bool[np.ndarray, "*rows V"]) -> UInt32[np.ndarray, "*rows W"]:
    """Return a mask as bits; tokens after the last are not allowed."""
    missing = -allowed.shape[-1] % WORD
    padded = np.pad(allowed, [(0, 0)] * (allowed.ndim - 1) + [(0, missing)])
    # Little-endian bits and words: token t is bit t % 32 of word t // 32 on any machine.
    packed = np.packbits(padded, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u4").astype(np.uint32)


def _mask_logits(
    logits: Float[Array, "B V"], allowed: UInt32[Array, "B W"] | UInt32[Array, "1 W"]
) -> Float[Array, "B V"]:
    """Return logits that are minus infinity where a token is not allowed."""
    # Sent packed: as booleans they would be eight times
    # as large, with every step that has a grammar.
    bits = allowed[:, :, None] >> jnp.arange(WORD, dtype=jnp.uint32)[None, None, :]
    is_allowed = (bits & 1).astype(bool).reshape(allowed.shape[0], -1)[:, : logits.shape[1]]
    return jnp.where(is_allowed, logits, -jnp.inf)


def allowed_tokens(vocab_size: int, tokenizer: Tokenizer) -> UInt32[np.ndarray, "1 W"]:
    """Return bits of the logits that are of tokens that text may have, or of its end."""
    allowed = np.zeros(vocab_size, bool)
    allowed[: tokenizer.vocab_size] = True
    for token in (tokenizer.bos_id, tokenizer.pad_id):
        # Tokens that the vocabulary was padded with have weights that were never trained.
        if token is not None and token not in tokenizer.end_ids:
            allowed[token] = False
    return packed_mask(allowed[None])


class SamplerState(NamedTuple):
    """What slots keep on the device in addition to caches. Methods return a changed copy.

    Args:
        last: The token sampled last, `[S]`.
        history: What penalties count.
    """

    last: Int[Array, " S"]
    history: TokenHistory

    @property
    def num_slots(self) -> int:
        """S."""
        return self.last.shape[0]

    def held(self, slots: Int[Array, " B"]) -> Int[Array, " B"]:
        """Return slots that there are: the last one in the place of one out of range."""
        # Clamped for reading, where any row will do;
        # writing drops what is out of range (see `drew`).
        return jnp.minimum(slots, self.num_slots - 1)

    def drew(
        self, slots: Int[Array, " B"], tokens: Int[Array, " B"], history: TokenHistory
    ) -> "SamplerState":
        """Return the memory with the last tokens of some slots; those out of range drop."""
        return SamplerState(self.last.at[slots].set(tokens, mode="drop"), history)
