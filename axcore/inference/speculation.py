"""Speculative decoding: draft tokens are proposed, and one call of the model verifies all of them.

Draft tokens come from the text itself (`NGramLookup`) or from a smaller model (`DraftModel`). Which
of them are accepted is `verify_draft_tokens`.

The draft model of a `DraftedModel` has as many pages in its KV cache as the model, and a page of
both holds the same tokens. So what shares, copies or frees a page does so for both, and neither the
scheduler nor a program that reads knows of the draft.

Letters of shapes: B rows, T tokens of a row in a call, P pages of a row, N places, K draft tokens,
V vocabulary, W words of 32 tokens.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import attrs
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, UInt32

from axcore.config import PositiveInt, config
from axcore.data import Tokenizer
from axcore.errors import ConfigError
from axcore.inference.cached_model import CachedModel, ModelInput
from axcore.inference.request import EncoderSpec, SamplerKind
from axcore.inference.sampler import SamplerState, SamplingRows, TokenHistory, row_keys, sample
from axcore.inference.weights import WeightConversion
from axcore.module import Module


@config
class NGramLookup:
    """Proposes tokens that followed the same ones earlier in prompt and completion.

    It needs no model, and helps where answers repeat their prompt: summaries, edits, code.

    Source: Saxena 2023, "Prompt lookup decoding".

    Args:
        num_tokens: Draft tokens proposed at most.
        longest: Tokens at the end of the text that are looked for first.
        shortest: Fewest that are looked for, where more were not found.
    """

    num_tokens: PositiveInt = 4
    longest: PositiveInt = 3
    shortest: PositiveInt = 2

    def check(self) -> None:
        """Raise ConfigError where a value makes no sense."""
        if self.shortest > self.longest:
            raise ConfigError(
                f"shortest is {self.shortest}, and longest {self.longest}",
                where="speculation.shortest",
                hint="look for as many tokens or fewer",
            )

    def drafter(self, text: Iterable[int]) -> "NGramDrafter":
        """Return the drafter of one text."""
        return NGramDrafter(self, text)


class NGramDrafter:
    """Where each run of tokens was last in one text; each new token costs `longest` entries.

    Args:
        cfg: How long the runs are.
        text: The tokens at the beginning.
    """

    def __init__(self, cfg: NGramLookup, text: Iterable[int] = ()) -> None:
        self._cfg = cfg
        self._text: list[int] = []
        self._follows: dict[tuple[int, ...], int] = {}
        self.push(text)

    def push(self, tokens: Iterable[int]) -> None:
        """Add tokens to the text."""
        text, lengths = self._text, range(self._cfg.shortest, self._cfg.longest + 1)
        for token in tokens:
            for length in lengths:
                if length <= len(text):
                    # The position after the run, noted before the token is appended; a later
                    # run of the same tokens replaces it, as recent text is the better proposal.
                    self._follows[tuple(text[-length:])] = len(text)
            text.append(int(token))

    def propose(self) -> list[int]:
        """Return tokens that may come next: `num_tokens` of them, or none.

        Draft tokens that reach the end of the text continue with themselves.
        """
        # Longest first: the more tokens agree, the likelier the next ones do.
        for length in range(self._cfg.longest, self._cfg.shortest - 1, -1):
            start = self._follows.get(tuple(self._text[-length:]))
            if start is not None and length <= len(self._text):
                return self._copied(start)
        return []

    def _copied(self, start: int) -> list[int]:
        propose = self._text[start : start + self._cfg.num_tokens]
        period = len(self._text) - start
        # Text that repeats itself, as `abcabc`, runs
        # into its own end; it continues with its period.
        while len(propose) < self._cfg.num_tokens:
            propose.append(propose[-period] if period <= len(propose) else propose[0])
        return propose


# Capitals, digits, accents, several scripts, an emoji, a tab and special
# tokens: tokenizers of one size that differ do so in one of these.
_PROBE = (
    "The quick brown fox, 0123456789: été, Straße, данные, 模型, 🙂!\n"
    '\tdef area(r): return 3.14 * r ** 2  # {"key": [null, true]} </s>'
)
"""A text that tokenizers of other vocabularies write in other tokens."""


@config
class DraftModel:
    """Proposes tokens that a draft model samples; the engine gets the model as `draft`.

    It samples with the same noise as the model, so both agree as often as they can.

    Args:
        num_tokens: Draft tokens proposed at most.
    """

    num_tokens: PositiveInt = 4

    def check(self) -> None:
        """Every value makes sense."""

    def drafter(self, text: Iterable[int]) -> "DeviceDrafter":
        """Return the drafter of one text: places alone, which the draft model fills."""
        del text
        return DeviceDrafter(self.num_tokens)


@attrs.frozen
class DeviceDrafter:
    """Places for draft tokens that are sampled on the device.

    Args:
        num_tokens: Number of them.
    """

    num_tokens: int

    def push(self, tokens: Iterable[int]) -> None:
        """Needs no tokens: the draft model's cache has them."""

    def propose(self) -> list[int]:
        """Return any tokens, in the place of those to be sampled."""
        # Their number decides the shape of the call; what is in them is overwritten on the device.
        return [0] * self.num_tokens


@attrs.frozen(kw_only=True)
class Draft:
    """A draft model with its weights.

    Args:
        model: The model, as it is trained.
        state: Its state.
        tokenizer: The tokenizer that it was trained with.
    """

    model: Module
    state: Any
    tokenizer: Tokenizer

    def check_tokenizer(self, other: Tokenizer) -> None:
        """Refuse a tokenizer whose numbers mean other text than the draft's.

        Raises:
            ConfigError: Saying how they differ.
        """
        own = self.tokenizer
        reason = None
        if own.vocab_size != other.vocab_size:
            reason = f"one has {own.vocab_size} tokens, the other {other.vocab_size}"
        # The sizes agree for many families; ends do not.
        elif set(own.end_ids) != set(other.end_ids):
            reason = f"texts end with {own.end_ids} in one, with {other.end_ids} in the other"
        elif own.encode(_PROBE).tolist() != other.encode(_PROBE).tolist():
            reason = "they write the same text in other tokens"
        if reason is not None:
            raise ConfigError(
                f"the draft's tokenizer is not that of the model: {reason}",
                where="draft",
                hint="take a smaller model of the same family, or train one with this tokenizer",
            )


class Verified(NamedTuple):
    """The tokens of a call with draft tokens.

    Args:
        tokens: Sampled tokens; the first `counts` of each row belong to its answer.
        counts: One more than the draft tokens that were accepted.
    """

    tokens: Int[Array, "B K+1"]
    counts: Int[Array, " B"]


def verify_draft_tokens(
    logits: Float[Array, "B K+1 V"],
    draft_tokens: Int[Array, "B K"],
    rows: SamplingRows,
    *,
    first: Int[Array, " B"],
    num_draft_tokens: Int[Array, " B"],
    allowed: UInt32[ArrayLike, "#B W"] | None = None,
    history: TokenHistory | None = None,
    kind: SamplerKind = "full",
) -> Verified:
    """Return the tokens that plain decoding samples, one after the other.

    Each place is sampled as without draft tokens, with the same key; one is accepted where it is
    what was sampled. So a completion is the same with and without draft tokens, whatever they are,
    and its distribution is the model's. A draft model that samples with the same keys, and so with
    the same noise, is accepted with a probability of at least `(1 - d) / (1 + d)`, where `d` is the
    total variation between both distributions.

    Source: Daliri, Musco and Suresh 2024, arXiv:2408.07978, section 3. Differs: from Leviathan et
    al. 2023, arXiv:2211.17192, and Chen et al. 2023, arXiv:2302.01318, whose rejection keeps the
    distribution, but not the tokens; a draft token that does not depend on the model is accepted as
    often there, that of a drafting model up to `2d / (1 + d)` of the time more.

    Args:
        logits: After the last known token and after each draft token.
        draft_tokens: They may be any tokens where there are none.
        rows: How each row samples.
        first: Number of tokens of each row's answer before.
        num_draft_tokens: How many of the draft tokens of each row are real ones.
        allowed: As of `sample`; the same at each place, so a row with a grammar has no draft
            tokens.
        history: As of `sample`, of the text before.
        kind: As of `sample`.
    """
    num_places = logits.shape[1]
    in_row = jnp.arange(logits.shape[0])

    def at_place(carry: TokenHistory | None, place: Array) -> Any:
        # By the place in the answer, as without draft tokens: the same noise, hence the same token.
        keys = row_keys(rows.seed, first + place)
        here = logits[:, place]
        sampled = sample(here, rows, keys, allowed=allowed, history=carry, kind=kind)
        if carry is not None:
            # The draft's token, not the sampled one: places after a rejected
            # one are thrown away, and before it both are the same. `minimum`
            # keeps the last place, which has no draft token, in range.
            carry = carry.sampled(in_row, draft_tokens[:, jnp.minimum(place, num_places - 2)])
        return carry, sampled

    # A scan: one place's logits at a time in float32, and a history that the next place needs.
    _, sampled = jax.lax.scan(at_place, history, jnp.arange(num_places, dtype=jnp.int32))
    tokens = sampled.T
    steps = jnp.arange(num_places - 1)[None, :]
    is_right = (tokens[:, :-1] == draft_tokens) & (steps < num_draft_tokens[:, None])
    # A cumulative product is 1 up to the first wrong token. The place
    # after the last right one is sampled from the right text, hence the 1.
    counts = 1 + jnp.sum(jnp.cumprod(is_right.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)
    return Verified(tokens, counts)


# Parentheses cannot be in a module's name.
DRAFT = "(draft)"
"""Where trees of weights and of caches have those of the draft; no module can be called so."""


class DraftedModel:
    """A model with a KV cache that is called as a `CachedModel`, and a smaller one that drafts for
    it.

    Args:
        model: The model.
        draft: The smaller model, with a KV cache of the same size.
    """

    def __init__(self, model: CachedModel, draft: CachedModel) -> None:
        self._model, self._draft = model, draft
        self.num_rows, self.vocab_size = model.num_rows, model.vocab_size
        self.has_adapters = model.has_adapters
        # A recurrent state cannot be taken back by a rejected token, in neither of the two models.
        self.keeps_pages_only = model.keeps_pages_only and draft.keeps_pages_only

    @property
    def conversion(self) -> WeightConversion:
        """What makes weights of the model's state; the draft's stay."""
        return self._model.conversion

    def weights_of(self, state: Any, draft_state: Any) -> Any:
        """Return what programs take of both states."""
        own, draft = self._model.conversion, self._draft.conversion
        return {**own.whole(state), DRAFT: draft.whole(draft_state)}

    @property
    def encoder(self) -> EncoderSpec | None:
        """The model's own; the draft sees other inputs as any tokens."""
        return self._model.encoder

    @property
    def are_pages(self) -> Any:
        """Of each cache, whether its first dimension is pages."""
        return {**self._model.are_pages, DRAFT: self._draft.are_pages}

    def encode(self, weights: Any, caches: Any, inputs: Array, slots: Int[Array, " n"]) -> Any:
        """Return caches with the soft tokens of inputs in some slots."""
        own, drafts = _parted(weights), _parted(caches)
        return {**self._model.encode(own[0], drafts[0], inputs, slots), DRAFT: drafts[1]}

    def empty_caches(self) -> Any:
        """Return caches of rows without a token."""
        return {**self._model.empty_caches(), DRAFT: self._draft.empty_caches()}

    @property
    def cache_bytes(self) -> int:
        """What caches take on a device."""
        return self._model.cache_bytes + self._draft.cache_bytes

    @property
    def fixed_cache_bytes(self) -> int:
        """Of that, what does not depend on how many pages there are."""
        return self._model.fixed_cache_bytes + self._draft.fixed_cache_bytes

    @property
    def cache_shardings(self) -> Any:
        """How caches are sharded on the mesh of the weights; None without one."""
        if self._model.cache_shardings is None:
            return None
        return {**self._model.cache_shardings, DRAFT: self._draft.cache_shardings}

    def step_at(
        self,
        weights: Any,
        caches: Any,
        tokens: Int[Array, "B T"],
        num_cached: Int[Array, " B"],
        num_new: Int[Array, " B"],
        *,
        at: Int[Array, "B N"],
        slots: Int[Array, " B"] | None = None,
        page_table: Int[Array, "B P"] | None = None,
        adapters: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B N V"], Any]:
        """Return what `CachedModel.step_at` of the model does; the draft reads the tokens, too.

        What follows them is not computed of the draft, which adapters do not correct.
        """
        where: dict[str, Any] = {"slots": slots, "page_table": page_table}
        own, drafts = _parted(weights), _parted(caches)
        logits, changed = self._model.step_at(
            own[0], drafts[0], tokens, num_cached, num_new, at=at, adapters=adapters, **where
        )
        # The draft must have read all that the model has,
        # or its next proposal would come from a text with holes.
        _, read = self._draft.step(
            own[1], drafts[1], self._known(tokens), num_cached, num_new, **where
        )
        return logits, {**changed, DRAFT: read}

    def with_draft_tokens(
        self,
        weights: Any,
        caches: Any,
        rows: ModelInput,
        *,
        sampler_state: SamplerState,
        sampling: SamplingRows,
        allowed: UInt32[Array, "1 W"],
        kind: SamplerKind,
    ) -> tuple[ModelInput, Any]:
        """Return rows with the tokens that the draft samples after the first of each.

        They are sampled as the model's own are: by the row's settings, with the same noise.
        """
        held = sampler_state.held(rows.slots)
        own, in_row = sampling.take(held), jnp.arange(len(held))

        def one(carry: Any, step: Array) -> Any:
            caches, tokens, history = carry
            samples = (step < rows.sizes - 1).astype(jnp.int32)
            logits, caches = self._draft.step(
                weights[DRAFT],
                caches,
                self._known(tokens[:, None]),
                # Rows that have no more to draft still run in the batch; they read
                # nothing, at place 0, and write to a slot out of range, which is dropped.
                (rows.starts + step) * samples,
                samples,
                slots=jnp.where(samples > 0, rows.slots, sampler_state.num_slots),
                page_table=rows.pages,
            )
            sampled = sample(
                _of_width(logits, self.vocab_size),
                own,
                row_keys(own.seed, rows.first + step),
                allowed=allowed,
                history=history,
                kind=kind,
            )
            history = None if history is None else history.sampled(in_row, sampled)
            return (caches, sampled, history), sampled

        history = sampler_state.history.take(held) if kind == "full" else None
        places = jnp.arange(rows.tokens.shape[1] - 1, dtype=jnp.int32)
        (read, _, _), draft_tokens = jax.lax.scan(
            one, (caches[DRAFT], rows.tokens[:, 0], history), places
        )
        tokens = jnp.concatenate([rows.tokens[:, :1], draft_tokens.T], axis=1)
        return rows._replace(tokens=tokens), {**caches, DRAFT: read}

    def _known(self, tokens: Int[Array, "B T"]) -> Int[Array, "B T"]:
        """Return tokens with one of the draft's in the place of each that only the model has."""
        # A fine-tuned model may have tokens that the draft lacks; any known one in their
        # place makes a bad draft token and no wrong answer, as out-of-range embeddings would.
        return jnp.minimum(tokens, self._draft.vocab_size - 1)


AnyCachedModel = CachedModel | DraftedModel


def _parted(tree: Any) -> tuple[Any, Any]:
    """Return the parts of the model and of the draft."""
    return {name: below for name, below in tree.items() if name != DRAFT}, tree[DRAFT]


def _of_width(logits: Float[Array, "B V"], width: int) -> Float[Array, "B width"]:
    """Return the logits of as many tokens as another model has; of those added, never sampled."""
    # Minus infinity: a token that the draft does not have can never be proposed.
    missing = max(0, width - logits.shape[1])
    padded = jnp.pad(logits[:, :width], ((0, 0), (0, missing)), constant_values=-jnp.inf)
    return padded.astype(jnp.float32)


Drafter = NGramDrafter | DeviceDrafter
"""What proposes the next tokens of one text."""
