"""`Remat`: which values of a module's forward pass the backward pass keeps."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from axcore.config import config


@config
class Remat:
    """Recomputes a module's forward pass in the backward pass, but for named values.

    Names are those that ops and layers give with `named`, such as `attention_out`.

    Args:
        save: Names of values kept in device memory.
        offload: Names of values kept in the host's memory.
        save_dots: Also keeps the results of matrix products without batch dimensions.
    """

    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    save_dots: bool = False

    def wrap(self, fn: Callable[..., Any], *, in_scan: bool = False) -> Callable[..., Any]:
        """Return `fn` under `jax.checkpoint` with this policy.

        In the body of a scan the compiler cannot merge the recomputation with the forward pass, so
        the barrier against it, which costs speed, is left out.
        """
        # In a scan XLA has no second copy of the forward pass to merge with;
        # elsewhere it would merge both, and keep what was to be recomputed.
        return jax.checkpoint(fn, policy=self._policy(), prevent_cse=not in_scan)

    def _policy(self) -> Any:
        policies = jax.checkpoint_policies
        if self.offload:
            named = policies.save_and_offload_only_these_names(
                names_which_can_be_saved=list(self.save),
                names_which_can_be_offloaded=list(self.offload),
                offload_src="device",
                offload_dst="pinned_host",
            )
        else:
            named = policies.save_only_these_names(*self.save)
        # Products of weights, but not those of attention, whose
        # batch dimensions make them as large as its scores.
        if self.save_dots:
            return policies.save_from_both_policies(
                policies.dots_with_no_batch_dims_saveable, named
            )
        return named


def named(x: Array, name: str) -> Array:
    """Return `x` under a name, by which a `Remat` may keep it."""
    same: Array = checkpoint_name(x, name)  # type: ignore[no-untyped-call]
    return same


def named_bits(x: Array, name: str) -> Array:
    """Return a floating `x` as `named` does, kept as its bits; it has no gradient.

    What is kept must be what the forward pass uses after it, to the bit, which JAX ensures by
    rounding it once more: a pass through memory where `x` comes from a kernel. Bits need none.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    same: Array = jax.lax.bitcast_convert_type(named(bits, name), x.dtype)
    return same
