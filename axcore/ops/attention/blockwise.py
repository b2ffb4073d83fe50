"""Attention block by block with an online softmax: memory grows with T and S, not with T * S.

One loop runs over the list of active (query block, key block) pairs; its length is static, and
pairs that causality and window hide are not in it; those that documents and key ranges hide are
passed over when it runs. Backward computes the probabilities of each block again from the
log-sum-exp, which with the output is all that forward leaves behind.

Letters: B batch, K key heads, G query heads that share a key head, T queries and S keys of one
block, H key width; Q and L lead: blocks of queries, blocks of keys.

Source: Milakov and Gimelshein 2018, arXiv:1805.02867; Rabe and Staats 2021, arXiv:2112.05682; Dao
et al. 2022, arXiv:2205.14135.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from axcore.ops.attention.block_math import (
    Logits,
    OnlineSoftmax,
    block_gradients,
    block_logits,
    finite_lse,
    group_bias,
    group_heads,
    group_rows,
    keys_first,
    row_delta,
    sink_gradient,
    sum_to,
    swap_heads,
    ungroup_heads,
    ungroup_rows,
)
from axcore.ops.attention.mask import Columns, Rows, columns, dropout_factor, rows, visible
from axcore.ops.attention.op import AttentionInputs, AttentionSpec
from axcore.ops.blocks import Blocks, branch


@attrs.frozen(eq=False)
class BlockedCall:
    """One call: `q` is `[Q, B, K, G, T, H]`, `k` and `v` are `[L, B, K, S, H]`.

    `seeds` are those of dropout, `[B, N]`. `has_offsets` says whether queries are at places
    that are known at run time only.
    """

    spec: AttentionSpec
    seeds: Array | None
    queries: Blocks
    keys: Blocks
    q: Array
    k: Array
    v: Array
    rows: Rows
    columns: Columns
    bias: "BlockedBias | None"
    has_offsets: bool

    @classmethod
    def of(cls, inputs: AttentionInputs, spec: AttentionSpec, block_size: int) -> "BlockedCall":
        """Return the call cut into blocks of at most `block_size` queries and keys."""
        queries = Blocks.at_most(inputs.q_BTNH.shape[1], block_size)
        keys = Blocks.at_most(inputs.k_BSKH.shape[1], block_size)
        num_key_heads = inputs.k_BSKH.shape[2]
        # Counted on through the padding, and not padded with zeros: a padded key at place 0 would
        # be visible to all queries.
        key_position = jnp.arange(keys.num * keys.size, dtype=jnp.int32)
        cut_columns = jax.tree.map(lambda x: keys.cut(x, axis=1), columns(inputs))
        return cls(
            spec=spec,
            seeds=inputs.dropout_seeds_BN,
            queries=queries,
            keys=keys,
            q=queries.cut(group_heads(inputs.q_BTNH, num_key_heads), axis=3),
            k=keys.cut(swap_heads(inputs.k_BSKH), axis=2),
            v=keys.cut(swap_heads(inputs.v_BSKV), axis=2),
            rows=jax.tree.map(lambda x: queries.cut(x, axis=1), rows(inputs, spec)),
            columns=cut_columns._replace(position=key_position.reshape(keys.num, 1, keys.size)),
            bias=BlockedBias.of(inputs.bias_BNTS, queries, keys, num_key_heads),
            has_offsets=inputs.query_offset_B is not None,
        )

    def logits(self, i: Array, j: Array) -> Logits:
        """Return the logits of query block `i` and key block `j`."""
        mask = visible(
            self.spec,
            jax.tree.map(lambda x: x[i], self.rows),
            jax.tree.map(lambda x: x[j], self.columns),
            num_keys=self.keys.length if self.keys.is_padded else None,
        )
        bias = None if self.bias is None else self.bias.at(i, j)
        return block_logits(self.q[i], self.k[j], self.spec, bias=bias, mask=mask)

    def dropout(self, i: Array, j: Array) -> Array | None:
        """Return the dropout factors of a block, `[B, K, G, T, S]`, if there is dropout."""
        if self.seeds is None:
            return None
        factor_BNTS = dropout_factor(
            self.seeds,
            self.spec.dropout_rate,
            num_queries=self.queries.size,
            num_keys=self.keys.size,
            query_start=i * self.queries.size,
            key_start=j * self.keys.size,
        )
        return group_bias(factor_BNTS, self.q.shape[2])


@attrs.frozen(eq=False)
class BlockedBias:
    """The bias cut into blocks: `[Q or 1, L or 1, B or 1, K or 1, G or 1, T or 1, S or 1]`."""

    blocks: Array
    queries: Blocks
    keys: Blocks

    @classmethod
    def of(
        cls, bias_BNTS: Array | None, queries: Blocks, keys: Blocks, num_key_heads: int
    ) -> "BlockedBias | None":
        """Return the cut bias; an axis of size 1 is one block of size 1."""
        if bias_BNTS is None:
            return None
        query_blocks = queries if bias_BNTS.shape[2] == queries.length else Blocks(1, 1)
        key_blocks = keys if bias_BNTS.shape[3] == keys.length else Blocks(1, 1)
        by_keys = key_blocks.cut(group_bias(bias_BNTS, num_key_heads), axis=4)
        return cls(query_blocks.cut(by_keys, axis=4), query_blocks, key_blocks)

    def at(self, i: Array, j: Array) -> Array:
        """Return the bias of a block."""
        return self.blocks[self._index(i, j)]

    def zeros(self) -> Array:
        """Return the float32 gradient before any block was added."""
        return jnp.zeros(self.blocks.shape, jnp.float32)

    def summed(self, dlogits: Array) -> Array:
        """Return the gradient of one block, summed where the bias has size 1."""
        return sum_to(dlogits, self.blocks.shape[2:])

    def add(self, sums: Array, new: Array, i: Array, j: Array) -> Array:
        """Return the gradient with that of one block added, `summed`."""
        return sums.at[self._index(i, j)].add(new)

    def join(self, sums: Array, shape: tuple[int, ...]) -> Array:
        """Return the gradient in the shape of the bias, `[B, N, T, S]`."""
        return self.keys.join(self.queries.join(sums, axis=4), axis=4).reshape(shape)

    def _index(self, i: Array, j: Array) -> tuple[Array | int, Array | int]:
        return (i if self.queries.num > 1 else 0, j if self.keys.num > 1 else 0)


def active_block_pairs(
    queries: Blocks, keys: Blocks, spec: AttentionSpec, *, offset_is_static: bool
) -> np.ndarray:
    """Return int32 `[P, 2]`: the (query block, key block) pairs that causality and window leave.

    Pairs are sorted by query block. Where the offset of the queries is known only at run time
    nothing can be left out.
    """
    pairs = np.indices((queries.num, keys.num), dtype=np.int32).reshape(2, -1).T
    # Offsets are in the trace, and the list of pairs has to be static: all pairs, of which
    # `active_at_run_time` passes over those that are hidden.
    if not offset_is_static:
        return pairs
    first_query = pairs[:, 0] * queries.size + spec.query_offset
    last_query = np.minimum(first_query + queries.size, queries.length + spec.query_offset) - 1
    first_key = pairs[:, 1] * keys.size
    last_key = np.minimum(first_key + keys.size, keys.length) - 1
    is_active = np.ones(len(pairs), bool)
    if spec.left is not None:
        is_active &= last_key >= first_query - spec.left
    if spec.right is not None:
        is_active &= first_key <= last_query + spec.right
    return pairs[is_active]


_T = TypeVar("_T")
_LARGEST = int(np.iinfo(np.int32).max)


def active_at_run_time(call: BlockedCall, pairs: Array) -> Array | None:
    """Return whether each of the pairs `[P, 2]` may have visible keys; None where all may."""
    i, j = pairs[:, 0], pairs[:, 1]
    first, last = j * call.keys.size, (j + 1) * call.keys.size - 1
    conditions = []
    if call.rows.segments is not None and call.columns.segments is not None:
        # Ranges of segment ids are compared, not all pairs of tokens, which would be as large as
        # the mask. Ids that overlap without being equal cost a block that is masked to nothing.
        q_low, q_high = block_bounds(call.rows.segments, call.rows.segments != 0)
        k_low, k_high = block_bounds(call.columns.segments, call.columns.segments != 0)
        conditions.append((q_low[i] <= k_high[j]) & (k_low[j] <= q_high[i]))
    if call.rows.k_start is not None and call.rows.k_end is not None:
        is_range = call.rows.k_start < call.rows.k_end
        low, _ = block_bounds(call.rows.k_start, is_range)
        _, high = block_bounds(call.rows.k_end, is_range)
        conditions.append((low[i] <= last[:, None]) & (high[i] > first[:, None]))
    if call.has_offsets:
        low, high = block_bounds(call.rows.position)
        if call.spec.left is not None:
            conditions.append(last[:, None] >= low[i] - call.spec.left)
        if call.spec.right is not None:
            conditions.append(first[:, None] <= high[i] + call.spec.right)
    if not conditions:
        return None
    live = conditions[0]
    for condition in conditions[1:]:
        live = live & condition
    # One branch for the full batch: rows are computed together, and a pair is left out where no
    # row needs it.
    return jnp.any(live, axis=1)


def where_active(
    is_active: Array | None, compute: Callable[[], _T], otherwise: Callable[[], _T]
) -> _T:
    """Return `compute()`, or where the pair is not live `otherwise()`, by `branch`."""
    if is_active is None:
        return compute()
    return branch(is_active, compute, otherwise)


def block_bounds(values: Array, counts: Array | None = None) -> tuple[Array, Array]:
    """Return the least and largest of each block's entries that count, `[blocks, B]`.

    Args:
        values: Integers `[blocks, B, size]`.
        counts: Which of them count; all if left out.
    """
    values = values.astype(jnp.int32)
    if counts is None:
        return jnp.min(values, axis=2), jnp.max(values, axis=2)
    low = jnp.min(jnp.where(counts, values, _LARGEST), axis=2)
    high = jnp.max(jnp.where(counts, values, -_LARGEST), axis=2)
    return low, high


BLOCK_SIZE = 512

_Pair = tuple[tuple[Array, Array], Array | None]
"""Numbers of a query and a key block, and whether they have anything to compute; or many such."""


def blockwise_forward(
    inputs: AttentionInputs, spec: AttentionSpec, *, block_size: int = BLOCK_SIZE
) -> tuple[Array, Array]:
    """Return `(o_BTNV, lse_BTN)`; see `attention_reference` for the meaning."""
    call = BlockedCall.of(inputs, spec, block_size)

    def step(running: OnlineSoftmax, pair: _Pair) -> tuple[OnlineSoftmax, None]:
        (i, j), is_active = pair
        old = jax.tree.map(lambda x: x[i], running)
        new = where_active(
            is_active,
            lambda: old.add(call.logits(i, j).value, call.v[j], call.dropout(i, j)),
            lambda: old,
        )
        return jax.tree.map(lambda x, y: x.at[i].set(y), running, new), None

    start = OnlineSoftmax.start(call.q.shape[:-1], call.v.shape[-1], inputs.sinks_N)
    # One scan over pairs, and not one over queries with one over keys in it: of a triangle half
    # of the inner steps would be empty, and both lengths have to be static.
    running, _ = lax.scan(step, start, _pairs(call))
    o, lse = running.finish()
    o = o.astype(inputs.q_BTNH.dtype)
    return ungroup_heads(call.queries.join(o, axis=3)), ungroup_rows(call.queries.join(lse, axis=3))


def _pairs(call: BlockedCall) -> _Pair:
    """Return the pairs of blocks to go through, and which of them have anything to compute."""
    is_static = not call.has_offsets
    pairs = jnp.asarray(
        active_block_pairs(call.queries, call.keys, call.spec, offset_is_static=is_static)
    )
    return (pairs[:, 0], pairs[:, 1]), active_at_run_time(call, pairs)


class _Sums(NamedTuple):
    """Gradients so far, cut into blocks, float32; or what one pair of blocks adds to them."""

    q: Array
    k: Array
    v: Array
    bias: Array | None


def blockwise_backward(
    inputs: AttentionInputs,
    spec: AttentionSpec,
    *,
    o_BTNV: Array,
    lse_BTN: Array,
    do_BTNV: Array,
    dlse_BTN: Array,
    block_size: int = BLOCK_SIZE,
) -> AttentionInputs:
    """Return the gradients of a call's arrays from its output and log-sum-exp.

    Parts that carry no gradient (integers) are None.
    """
    call = BlockedCall.of(inputs, spec, block_size)
    num_key_heads = inputs.k_BSKH.shape[2]
    delta_BTN = row_delta(o_BTNV, do_BTNV, dlse_BTN)
    do = call.queries.cut(group_heads(do_BTNV, num_key_heads), axis=3)
    delta = call.queries.cut(group_rows(delta_BTN, num_key_heads), axis=3)
    lse = call.queries.cut(group_rows(finite_lse(lse_BTN), num_key_heads), axis=3)

    def gradients(i: Array, j: Array) -> _Sums:
        logits = call.logits(i, j)
        new = block_gradients(
            jnp.exp(logits.value - lse[i][..., None]),
            do[i],
            delta[i],
            spec,
            q_BKGTH=call.q[i],
            k_BKSH=call.k[j],
            v_BKSV=call.v[j],
            capped=logits.capped,
            dropout=call.dropout(i, j),
        )
        bias = None if call.bias is None else call.bias.summed(new.logits)
        return _Sums(q=new.q_BKGTH, k=new.k_BKHS, v=new.v_BKVS, bias=bias)

    def step(sums: _Sums, pair: _Pair) -> tuple[_Sums, None]:
        (i, j), is_active = pair
        compute = partial(gradients, i, j)
        # Branches must agree in shapes and dtypes; `eval_shape` gets these without computing
        # anything.
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(compute))
        new = where_active(is_active, compute, lambda: nothing)
        bias = sums.bias
        if call.bias is not None and bias is not None and new.bias is not None:
            bias = call.bias.add(bias, new.bias, i, j)
        added = _Sums(
            q=sums.q.at[i].add(new.q),
            k=sums.k.at[j].add(new.k),
            v=sums.v.at[j].add(new.v),
            bias=bias,
        )
        return added, None

    # Sums are laid out as `block_gradients` returns gradients of keys and values, and are turned
    # back once, when they are whole.
    keys = (jnp.swapaxes(x, -1, -2) for x in (call.k, call.v))
    q, k, v = (jnp.zeros(x.shape, jnp.float32) for x in (call.q, *keys))
    start = _Sums(q, k, v, None if call.bias is None else call.bias.zeros())
    sums, _ = lax.scan(step, start, _pairs(call))
    return AttentionInputs(
        q_BTNH=ungroup_heads(call.queries.join(sums.q, axis=3)).astype(inputs.q_BTNH.dtype),
        k_BSKH=keys_first(call.keys.join(sums.k, axis=3)).astype(inputs.k_BSKH.dtype),
        v_BSKV=keys_first(call.keys.join(sums.v, axis=3)).astype(inputs.v_BSKV.dtype),
        bias_BNTS=_join_bias(call, sums.bias, inputs.bias_BNTS),
        sinks_N=sink_gradient(inputs.sinks_N, lse_BTN, delta_BTN),
    )


def _join_bias(call: BlockedCall, sums: Array | None, bias_BNTS: Array | None) -> Array | None:
    if call.bias is None or sums is None or bias_BNTS is None:
        return None
    return call.bias.join(sums, bias_BNTS.shape).astype(bias_BNTS.dtype)
