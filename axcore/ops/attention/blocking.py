"""A call's arrays cut into blocks, with the slices that one step of a loop needs.

Letters: B batch, K key heads, G query heads that share a key head, T queries and S keys of one
block, H key width; Q and L lead: blocks of queries, blocks of keys.
"""

import attrs
import jax
import jax.numpy as jnp
from jax import Array

from axcore.ops.attention.block_math import Logits, block_logits, sum_to
from axcore.ops.attention.dropout import dropout_factor
from axcore.ops.attention.heads import group_bias, group_heads, swap_heads
from axcore.ops.attention.mask import Columns, Rows, columns, rows, visible
from axcore.ops.attention.types import AttentionInputs, AttentionSpec
from axcore.ops.blocks import Blocks


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
