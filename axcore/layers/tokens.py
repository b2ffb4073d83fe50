"""`TokenInfo`: what layers may want to know of each token in addition to its vector."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from axcore.errors import ModuleError

TOKEN_MASK = "token_mask"
"""The shared value in which layers without a `TokenInfo` see which tokens are not padding:
`[batch, time]` bools."""

GRID_POSITIONS = "grid_positions"
"""The channel in which `GridPositions` sends the positions of each token, `[B, T, 3]`."""

GRID_COLUMNS = 1 << 12
"""The most columns of a picture's grid: its token at row r and column c has position
`r * GRID_COLUMNS + c`, so that positions stay one number for each token."""


class CallTokens(NamedTuple):
    """Positions and segment ids of all tokens of a call, as `TokenInfo` has them."""

    positions: Int[Array, "batch time"]
    segment_ids: Int[Array, "batch time"] | None


class TokenInfo(NamedTuple):
    """Passed as one value through every layer, so that signatures stay as they are.

    Args:
        positions: Position of each token within its document.
        segment_ids: Document of each token in a packed row, 0 for padding; None where every row is
            one document.
        num_cached: Tokens of each row that earlier calls left in caches, which these follow; None
            where every row begins with this call.
        slots: Row of the caches that each row of the call has; None where they are the same. A row
            of padding may have one out of range: nothing of it is kept.
        page_table: Pages of the caches that hold each row's tokens, in their order. Pages that
            no token has reached may be any number.
        scales: What keys and values of a cache are to be multiplied by, `[rows, keys, kv_heads]`
            each; None where they are as they were.
        token_mask: Which tokens are not padding; None where `segment_ids` say so, or, without them,
            where all are. It asks no kernel for a mask: causal attention never reaches padding,
            which is at the end of a row.
        call: All tokens of the call where they follow others, whichever of them a layer sees.
        key_mask: Which keys of a cache are there, laid out as the keys are; None where all of a
            row's tokens have one.
    """

    positions: Int[Array, "batch time"]
    segment_ids: Int[Array, "batch time"] | None = None
    num_cached: Int[Array, " batch"] | None = None
    slots: Int[Array, " batch"] | None = None
    page_table: Int[Array, "batch pages"] | None = None
    scales: tuple[Array, Array] | None = None
    token_mask: Bool[Array, "batch time"] | None = None
    call: CallTokens | None = None
    key_mask: Bool[Array, "rows keys"] | None = None

    @property
    def tokens(self) -> CallTokens:
        """The tokens that a layer is called with."""
        return CallTokens(self.positions, self.segment_ids)

    @property
    def has_all_tokens(self) -> bool:
        """Whether these are the tokens of the call, all of them and unchanged.

        The arrays are compared as Python objects, since their numbers are not known while a program
        is traced. So it is False for arrays that a layer made again, though of equal numbers.
        """
        call = self.call
        return (
            call is not None
            and self.positions is call.positions
            and self.segment_ids is call.segment_ids
        )

    def of_call(self) -> "TokenInfo":
        """Return the info of all tokens of the call.

        Raises:
            ModuleError: It is not known which they are.
        """
        if self.call is None:
            raise ModuleError(
                "a layer that keeps keys and values is called with a TokenInfo that does not say "
                "which tokens the call has",
                hint="make it with continued_rows(tokens, num_cached, num_new), and change it with "
                "info._replace(...)",
            )
        return self._replace(positions=self.call.positions, segment_ids=self.call.segment_ids)

    @property
    def is_real(self) -> Bool[Array, "batch time"] | None:
        """Which tokens are not padding; None where all are."""
        if self.token_mask is not None or self.segment_ids is None:
            return self.token_mask
        return self.segment_ids > 0

    def key_positions(self, num_keys: int) -> Int[Array, "batch keys"]:
        """Return the position of each key that the tokens attend over.

        Args:
            num_keys: Second dimension of the keys: keys of a row, or of a page.
        """
        if self.num_cached is None:
            return self.positions
        if self.page_table is not None:  # a row's keys are those of all its pages, in order
            num_keys *= self.page_table.shape[1]
        places = jnp.arange(num_keys, dtype=jnp.int32)[None, :]
        return jnp.broadcast_to(places, (self.positions.shape[0], num_keys))

    def kept_places(self, out_of_range: int) -> Int[Array, "batch time"]:
        """Return the place of each token in its row's cache, and of padding one out of range."""
        if self.segment_ids is None:
            return self.positions
        return jnp.where(self.segment_ids > 0, self.positions, out_of_range)

    def num_new(self) -> Int[Array, " batch"]:
        """Return how many tokens of each row are not padding."""
        if self.segment_ids is None:
            return jnp.full(self.positions.shape[:1], self.positions.shape[1], jnp.int32)
        return jnp.sum(self.segment_ids > 0, axis=1, dtype=jnp.int32)


def _flat(info: TokenInfo) -> tuple[list[tuple[Any, Any]], bool]:
    """Return the fields of an info, and whether it has all tokens, without these twice.

    Each array would otherwise be another object behind a transformation, `jit` or remat.
    """
    fields = info._replace(call=None) if info.has_all_tokens else info
    keys = map(jax.tree_util.GetAttrKey, info._fields)
    return list(zip(keys, fields, strict=True)), info.has_all_tokens


def _unflat(has_all_tokens: bool, fields: Iterable[Any]) -> TokenInfo:
    info = TokenInfo(*fields)
    return info._replace(call=info.tokens) if has_all_tokens else info


jax.tree_util.register_pytree_with_keys(TokenInfo, _flat, _unflat)


def whole_rows(
    tokens: Shaped[Array, "batch time *size"],
    token_mask: Bool[Array, "batch time"] | None = None,
) -> TokenInfo:
    """Return the info of rows that each hold one document from its beginning.

    Args:
        tokens: Of the rows, or their vectors.
        token_mask: Which of them are not padding, which follows the document; None where all are.
    """
    positions = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
    return TokenInfo(jnp.broadcast_to(positions, tokens.shape[:2]), token_mask=token_mask)


def packed_rows(batch: Mapping[str, Array]) -> TokenInfo:
    """Return the info of a batch of `axcore.data`.

    Args:
        batch: `positions`; and `segment_ids` where a row holds several documents, or `token_mask`
            where it is read as one and may end in padding.
    """
    return TokenInfo(batch["positions"], batch.get("segment_ids"), token_mask=batch.get(TOKEN_MASK))


def continued_rows(
    tokens: Int[Array, "batch time"],
    num_cached: Int[Array, " batch"],
    num_new: Int[Array, " batch"],
    *,
    slots: Int[Array, " batch"] | None = None,
    page_table: Int[Array, "batch pages"] | None = None,
) -> TokenInfo:
    """Return the info of tokens that follow `num_cached` others of their row.

    Row `b` has `num_new[b]` tokens; what follows them is padding. A row that is all padding has 0
    of both.

    Args:
        tokens: Of the call.
        num_cached: Tokens of each row that are in the caches.
        num_new: New tokens of each row.
        slots: See `TokenInfo`.
        page_table: See `TokenInfo`.
    """
    steps = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
    # One document a row: 1 for its tokens and 0 for padding is a mask and segment ids in one.
    is_new = (steps < num_new[:, None]).astype(jnp.int32)
    positions = num_cached[:, None] + steps
    call = CallTokens(positions, is_new)
    return TokenInfo(positions, is_new, num_cached, slots, page_table, call=call)
