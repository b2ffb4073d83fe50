"""Suite settings: 16 fake CPU devices, strict promotion, runtime type checks, isolated caches.

Meshes in tests use at most 8 of the 16 devices: callbacks inside `shard_map` deadlock on a small
machine when every device takes part.
"""

import os

from hypothesis import HealthCheck, settings

os.environ["JAX_PLATFORMS"] = "cpu"
# Compiling takes most of the suite's time, and these programs run only once or twice.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_force_host_platform_device_count=16 --xla_backend_optimization_level=0 "
    "--xla_cpu_use_fusion_emitters=false",
)

from jaxtyping import install_import_hook

install_import_hook(["axcore.layers", "axcore.models", "axcore.ops"], "beartype.beartype")

import jax  # noqa: E402 - after the hook

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

settings.register_profile(
    "axcore",
    derandomize=True,
    database=None,
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("axcore")
