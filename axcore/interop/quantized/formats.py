"""The formats of quantized weights that are read, by `quant_method` of `config.json`."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from axcore.config import suggest_names
from axcore.errors import CheckpointError
from axcore.interop.quantized.bitsandbytes import read_bitsandbytes
from axcore.interop.quantized.compressed_tensors import read_compressed_tensors
from axcore.interop.quantized.float4 import read_modelopt, read_mxfp4
from axcore.interop.quantized.float8 import read_fbgemm, read_float8
from axcore.interop.quantized.gptq import read_awq, read_gptq
from axcore.interop.quantized.tensors import Parts, Settings, Tensor
from axcore.interop.tensor_place import TensorPlace


@attrs.frozen
class QuantizedFormat:
    """A format of quantized weights.

    Args:
        name: What people call it.
        read: From the tensors of a checkpoint and its settings to the names of weights, and what
            they are dequantized by.
    """

    name: str
    read: Callable[[Parts, Settings], Iterator[tuple[str, Tensor]]]


FORMATS: Mapping[str, QuantizedFormat] = {
    "awq": QuantizedFormat("AWQ", read_awq),
    "bitsandbytes": QuantizedFormat("bitsandbytes", read_bitsandbytes),
    "compressed-tensors": QuantizedFormat("compressed-tensors", read_compressed_tensors),
    "fbgemm_fp8": QuantizedFormat("FBGEMM's FP8", read_fbgemm),
    "fp8": QuantizedFormat("FP8", read_float8),
    "gptq": QuantizedFormat("GPTQ", read_gptq),
    "modelopt": QuantizedFormat("ModelOpt", read_modelopt),
    "mxfp4": QuantizedFormat("MXFP4", read_mxfp4),
}
"""By the name of `quant_method`."""


def quantized_format(settings: Settings) -> QuantizedFormat:
    """Return the format of a checkpoint.

    Raises:
        CheckpointError: Nothing here reads it.
    """
    method = str(settings.get("quant_method"))
    if method not in FORMATS:
        raise CheckpointError(
            f"the weights are quantized by {method!r}; {suggest_names(method, FORMATS)}",
            where="quantization_config.quant_method",
            hint="fetch the model in bfloat16, or as GPTQ, AWQ, FP8 or GGUF",
        )
    return FORMATS[method]


def dequantized(
    tensors: Mapping[str, TensorPlace], settings: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return tensors, quantized ones as what they are dequantized to.

    A module that is not quantized, as those that settings name in `ignore` or
    `modules_to_not_convert`, has a plain weight, which stays as it is.

    Args:
        tensors: All tensors, by name.
        settings: `quantization_config` of `config.json`.

    Raises:
        CheckpointError: Nothing here reads such tensors, or some are missing or damaged.
    """
    parts, form = Parts(tensors), quantized_format(settings)
    try:
        found = dict(form.read(parts, settings))
    # Settings are of others: a list in the place of an object, or a text in that of a number.
    except (
        TypeError,
        ValueError,
        AttributeError,
        LookupError,
        ArithmeticError,
        re.error,
    ) as error:
        raise CheckpointError(
            f"quantization_config is not as {form.name} has it: {error}",
            where="quantization_config",
            hint="compare config.json with the one that was published",
        ) from error
    return {**found, **parts.rest()}
