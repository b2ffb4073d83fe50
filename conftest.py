"""Suite settings: 16 fake CPU devices, strict promotion, runtime type checks, one compile cache.

They hold for axcore's tests and for those of the plugins. Meshes in tests use at most 8 of the 16
devices: callbacks inside `shard_map` deadlock on a small machine when every device takes part.
"""

import gc
import os
import signal
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from quick_flags import QUICK_FLAGS, compile_cache, share_mlir_contexts, xla_flags

os.environ["JAX_PLATFORMS"] = "cpu"
# Workers and children share what the first one made; sessions do where a folder is named for it.
if "PYTEST_XDIST_WORKER" not in os.environ:
    kept = os.environ.get("AXCORE_TESTS_COMPILED")
    if kept is None:
        folder = tempfile.TemporaryDirectory(prefix="axcore-compiled-", ignore_cleanup_errors=True)
    os.environ.update(compile_cache(Path(kept or folder.name)))

from jaxtyping import install_import_hook

install_import_hook(["axcore.layers", "axcore.models", "axcore.ops"], "beartype.beartype")

import jax  # noqa: E402 - after the hook

pytest_plugins = [
    "case_samples",
    "counts",
    "half_precision",
    "second_try",
    "time_budget",
    "worker_memory",
]

# A shell without job control starts what it sends to the background deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Hypothesis would parse every module of axcore and of its tests for numbers and texts to try, and
# change what it tries with any of them.
providers._get_local_constants = lambda: providers._local_constants

# Tracing makes many objects that live on; looking through them as often as Python does by default
# takes a tenth of the suite's time.
gc.set_threshold(20_000, 50, 100)

settings.register_profile(
    "axcore",
    derandomize=True,
    database=None,
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("axcore")


def pytest_configure(config: pytest.Config) -> None:
    """Sets XLA's flags before jax starts; compilers of other hardware keep their own levels."""
    is_quick = not config.getoption("--compile-for")
    if is_quick:
        share_mlir_contexts()
    os.environ["XLA_FLAGS"] = xla_flags(QUICK_FLAGS if is_quick else "", devices=16)
