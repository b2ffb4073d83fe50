"""Decode attention for many queries of a row, a prompt's, by our flash attention.

The keys of each row are put together from the cache first; compared with that many queries the copy
is small.
"""

from typing import Any

from jax import Array

from axcore.ops import Call, DecodeInputs, DecodeSpec, attention_call_of, decode_as_attention
from axl_tpu.kernels.attention.api import tpu_flash_attention
from axl_tpu.kernels.attention.api import unsupported_reason as attention_unsupported_reason
from axl_tpu.kernels.decode.api import MAX_QUERY_ROWS


def unsupported_reason(call: Call) -> str | None:
    """Return None where the kernel can serve the call, else the reason why not."""
    _, queries, heads, _ = call.shape("q")
    if queries * heads <= MAX_QUERY_ROWS:
        return f"takes more than {MAX_QUERY_ROWS} queries times heads, not {queries} times {heads}"
    return attention_unsupported_reason(attention_call_of(call))


def tpu_prompt_attention(
    inputs: DecodeInputs, spec: DecodeSpec, *, interpret: Any = False
) -> Array:
    """Return `o_BTNV`.

    Args:
        inputs: Arrays of a call that `unsupported_reason` takes.
        spec: The call's static choices.
        interpret: Runs the kernel by an interpreter, on any device.
    """
    return tpu_flash_attention(*decode_as_attention(inputs, spec), interpret=interpret)[0]
