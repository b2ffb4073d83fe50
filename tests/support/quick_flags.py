"""What makes programs cheap that run once or twice, so that compiling them is what takes time."""

import os
import threading
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

QUICK_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if version("jaxlib").startswith("0.10."):  # later ones know the flag no more
    QUICK_FLAGS += " --xla_cpu_use_fusion_emitters=false"
_DEVICES = "--xla_force_host_platform_device_count"


def xla_flags(flags: str = QUICK_FLAGS, *, devices: int | None = None) -> str:
    """Returns `XLA_FLAGS` with these flags in it, and what the user set in addition to them.

    Args:
        flags: They replace flags of the same names.
        devices: How many the host shows; whatever was said of that before, goes.
    """
    mine = [*flags.split(), *([] if devices is None else [f"{_DEVICES}={devices}"])]
    replaced = {_DEVICES, *(flag.partition("=")[0] for flag in mine)}
    own = os.environ.get("XLA_FLAGS", "").split()
    return " ".join([*(flag for flag in own if flag.partition("=")[0] not in replaced), *mine])


def quick_environment(*, devices: int = 1) -> Mapping[str, str]:
    """Returns this process's variables for another one, with so many host devices."""
    return {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": xla_flags(devices=devices)}


def compile_cache(folder: Path) -> Mapping[str, str]:
    """Returns variables by which processes keep what they compile in one folder, and share it."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def share_mlir_contexts(programs: int = 50) -> None:
    """Lets jax lower so many programs of a thread in one MLIR context, not each in a new one.

    A new one loads all dialects: a fifth of the time of a small program. Contexts keep each type
    and constant that they saw, so that one does not serve for ever. Other versions of jax may have
    the function under another name, and do without.
    """
    from jax._src.interpreters import mlir

    make, own = getattr(mlir, "make_ir_context", None), threading.local()
    if make is None:
        return

    def shared() -> object:
        own.uses = getattr(own, "uses", 0) + 1
        if own.uses % programs == 1:
            own.context = make()
        return own.context

    mlir.make_ir_context = shared
