"""`DraftedModel`: a model and a smaller one that guesses for it, which read every token together.

The draft's caches have as many pages as the model's, and a page of both holds the same tokens. So
what shares, copies or gives back a page does so for both, and neither the scheduler nor a program
that reads knows of the draft.

Letters of shapes: B rows, T tokens of a row in a call, P pages of a row, N places, V vocabulary,
W words of a mask.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from axcore.inference.cached_model import CachedModel
from axcore.inference.device_calls import CallRows, Memory
from axcore.inference.drawing import DrawKind, SamplingRows, draw, row_keys
from axcore.inference.weight_conversion import WeightConversion

DRAFT = "(draft)"
"""Where trees of weights and of caches have those of the draft; no module can be called so."""


class DraftedModel:
    """A model with caches that is called as a `CachedModel`, and can guess.

    Args:
        model: The model.
        draft: What guesses for it, with as much room.
    """

    def __init__(self, model: CachedModel, draft: CachedModel) -> None:
        self._model, self._draft = model, draft
        self.num_rows, self.vocab_size = model.num_rows, model.vocab_size
        self.has_adapters = model.has_adapters
        self.keeps_pages_only = model.keeps_pages_only and draft.keeps_pages_only

    @property
    def conversion(self) -> WeightConversion:
        """What makes weights of the model's state; the draft's stay."""
        return self._model.conversion

    def weights_of(self, state: Any, draft_state: Any) -> Any:
        """Returns what programs take of both states."""
        own, draft = self._model.conversion, self._draft.conversion
        return {**own.whole(state), DRAFT: draft.whole(draft_state)}

    def empty_caches(self) -> Any:
        """Returns caches of rows without a token."""
        return {**self._model.empty_caches(), DRAFT: self._draft.empty_caches()}

    @property
    def cache_bytes(self) -> int:
        """What caches take on a device."""
        return self._model.cache_bytes + self._draft.cache_bytes

    @property
    def cache_shardings(self) -> Any:
        """How caches lie on the mesh of the weights; None without one."""
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
        """Returns what `CachedModel.step_at` of the model does; the draft reads the tokens, too.

        What follows them is not computed of the draft, which adapters do not correct.
        """
        where: dict[str, Any] = {"slots": slots, "page_table": page_table}
        own, drafts = _parted(weights), _parted(caches)
        logits, changed = self._model.step_at(
            own[0], drafts[0], tokens, num_cached, num_new, at=at, adapters=adapters, **where
        )
        _, read = self._draft.step(
            own[1], drafts[1], self._known(tokens), num_cached, num_new, **where
        )
        return logits, {**changed, DRAFT: read}

    def with_guesses(
        self,
        weights: Any,
        caches: Any,
        rows: CallRows,
        *,
        memory: Memory,
        sampling: SamplingRows,
        allowed: UInt32[Array, "1 W"],
        kind: DrawKind,
    ) -> tuple[CallRows, Any]:
        """Returns rows with the tokens that the draft draws after the first of each.

        They are drawn as the model's own are: by the row's settings, with the same noise.
        """
        held = memory.held(rows.slots)
        own, in_row = sampling.take(held), jnp.arange(len(held))

        def one(carry: Any, step: Array) -> Any:
            caches, tokens, history = carry
            draws = (step < rows.sizes - 1).astype(jnp.int32)
            logits, caches = self._draft.step(
                weights[DRAFT],
                caches,
                self._known(tokens[:, None]),
                (rows.starts + step) * draws,
                draws,
                slots=jnp.where(draws > 0, rows.slots, memory.num_slots),
                page_table=rows.pages,
            )
            drawn = draw(
                _of_width(logits, self.vocab_size),
                own,
                row_keys(own.seed, rows.first + step),
                allowed=allowed,
                history=history,
                kind=kind,
            )
            history = None if history is None else history.drawn(in_row, drawn)
            return (caches, drawn, history), drawn

        history = memory.history.take(held) if kind == "full" else None
        places = jnp.arange(rows.tokens.shape[1] - 1, dtype=jnp.int32)
        (read, _, _), guesses = jax.lax.scan(
            one, (caches[DRAFT], rows.tokens[:, 0], history), places
        )
        tokens = jnp.concatenate([rows.tokens[:, :1], guesses.T], axis=1)
        return rows._replace(tokens=tokens), {**caches, DRAFT: read}

    def _known(self, tokens: Int[Array, "B T"]) -> Int[Array, "B T"]:
        """Returns tokens with one of the draft's in the place of each that only the model has."""
        return jnp.minimum(tokens, self._draft.vocab_size - 1)


AnyCachedModel = CachedModel | DraftedModel


def _parted(tree: Any) -> tuple[Any, Any]:
    """Returns the parts of the model and of the draft."""
    return {name: below for name, below in tree.items() if name != DRAFT}, tree[DRAFT]


def _of_width(logits: Float[Array, "B V"], width: int) -> Float[Array, "B width"]:
    """Returns the logits of as many tokens as another model has; of those added, never drawn."""
    missing = max(0, width - logits.shape[1])
    padded = jnp.pad(logits[:, :width], ((0, 0), (0, missing)), constant_values=-jnp.inf)
    return padded.astype(jnp.float32)
