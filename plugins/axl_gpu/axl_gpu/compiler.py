"""Options that train steps for NVIDIA GPUs are compiled with."""

from collections.abc import Mapping

from axcore.plugins import Hardware

_TRANSFERS_UNDER_PRODUCTS = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_enable_pipelined_all_gather": True,
    "xla_gpu_enable_pipelined_all_reduce": True,
    "xla_gpu_enable_pipelined_reduce_scatter": True,
}


def transfers_under_products(hardware: Hardware) -> Mapping[str, bool]:
    """Returns the options by which XLA moves transfers between GPUs under computation.

    Source: "GPU performance tips" in JAX's documentation.
    """
    return _TRANSFERS_UNDER_PRODUCTS
