"""XLA's flags for training on NVIDIA GPUs."""

from collections.abc import Mapping

from axcore.plugins import Hardware


def latency_hiding(hardware: Hardware) -> Mapping[str, str]:
    """Returns the flag by which XLA moves communication under computation.

    Source: "GPU performance tips" in JAX's documentation.
    """
    return {"--xla_gpu_enable_latency_hiding_scheduler": "true"}
