"""XLA flags of programs that run once or twice, so that compiling them is what takes time."""

import os
from collections.abc import Mapping
from importlib.metadata import version

QUICK_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if version("jaxlib").startswith("0.10."):  # later ones know the flag no more
    QUICK_FLAGS += " --xla_cpu_use_fusion_emitters=false"


def quick_environment(*, devices: int = 1) -> Mapping[str, str]:
    """Returns this process's variables for another one, with so many host devices."""
    flags = f"{QUICK_FLAGS} --xla_force_host_platform_device_count={devices}"
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
