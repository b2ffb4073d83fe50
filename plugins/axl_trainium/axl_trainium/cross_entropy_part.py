"""Cross-entropy of the tokens and words that one device has, by NKI kernels.

Letters: D width, V words of the device; N tokens, R tokens of a group, M groups.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from axcore.ops import CrossEntropySpec
from axcore.parallel import CrossEntropySplit
from axl_trainium.calling import call_kernel, float32_like
from axl_trainium.cross_entropy_tiles import tiles_for
from axl_trainium.kernels.cross_entropy_backward import cross_entropy_dw, cross_entropy_dx
from axl_trainium.kernels.cross_entropy_forward import LOWEST, cross_entropy_forward
from axl_trainium.limits import PARTITIONS
from axl_trainium.row_tiles import tiled, untiled


class Part:
    """A device's part of a call; inside of the split's `in_parts`."""

    def __init__(
        self,
        x: Array,
        w: Array,
        targets: Array,
        *,
        spec: CrossEntropySpec,
        split: CrossEntropySplit,
    ) -> None:
        rounded = w.astype(x.dtype)
        tiles = tiles_for(x.shape[-1], x.dtype.name)
        assert tiles is not None
        self.x, self.split, self.group = x, split, tiles.tokens
        self.w_DV = rounded.T if spec.vocabulary_first else rounded
        own = targets.astype(jnp.int32) - split.first_word * self.w_DV.shape[1]
        self.target_N1 = own.astype(jnp.float32).reshape(-1, 1)
        self.choices: dict[str, Any] = {"soft_cap": spec.soft_cap, "block": tiles.columns}

    def statistics(self) -> tuple[Array, Array, Array]:
        """Returns each token's log-sum-exp, target's logit and largest logit, over all words."""
        x_MRD = tiled(self.x, self.group)
        statistics_MR3 = call_kernel(
            cross_entropy_forward,
            float32_like(*x_MRD.shape[:2], 3),
            x_MRD,
            self.w_DV,
            tiled(self.target_N1, self.group),
            **self.choices,
        )
        num_tokens = len(self.target_N1)
        statistics_3N = untiled(statistics_MR3, (num_tokens, 3), num_rows=num_tokens).T
        lse, target, largest = (one.reshape(self.x.shape[:-1]) for one in statistics_3N)
        names = self.split.vocab
        if names:
            target, largest = lax.pmax(target, names), lax.pmax(largest, names)
            highest = lax.pmax(lse, names)
            lse = highest + jnp.log(lax.psum(jnp.exp(lse - highest), names))
        return lse, jnp.where(target <= LOWEST, -jnp.inf, target), largest

    def hidden_gradient(self, token_N3: Array) -> Array:
        """Returns the gradient of the device's tokens, over all words."""
        x_MRD = tiled(self.x, self.group)
        dx_MRD = call_kernel(
            cross_entropy_dx,
            float32_like(*x_MRD.shape),
            x_MRD,
            self.w_DV,
            self.w_DV.T,
            tiled(self.target_N1, self.group),
            tiled(token_N3, self.group),
            **self.choices,
        )
        dx = untiled(dx_MRD, self.x.shape, num_rows=len(token_N3))
        total = lax.psum(dx, self.split.vocab) if self.split.vocab else dx
        return total.astype(self.x.dtype)

    def projection_gradient(self, token_N3: Array) -> Array:
        """Returns the gradient `[D, V]` of the device's words, over all tokens: float32."""
        dw_DV = call_kernel(
            cross_entropy_dw,
            float32_like(*self.w_DV.shape),
            tiled(self.x, PARTITIONS),
            self.w_DV,
            tiled(self.target_N1, PARTITIONS),
            tiled(token_N3, PARTITIONS),
            **self.choices,
        )
        return lax.psum(dw_DV, self.split.tokens) if self.split.tokens else dw_DV
