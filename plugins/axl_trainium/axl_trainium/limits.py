"""Limits of a NeuronCore that predicates know.

Source: AWS Neuron documentation, "Trainium2 Architecture Guide for NKI".
"""

PARTITIONS = 128
SBUF_PARTITION_BYTES = 192 * 1024

DTYPES = ("bfloat16", "float32")


def unsupported_dtype_reason(dtype: str) -> str | None:
    """Return None where kernels take the dtype, else the reason why not."""
    return None if dtype in DTYPES else f"takes {' and '.join(DTYPES)}, not {dtype}"
