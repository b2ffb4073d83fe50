"""Options that train steps for NVIDIA GPUs are compiled with."""

import re
from collections.abc import Mapping
from importlib.metadata import version

from axcore.plugins import Hardware

PIPELINED = ("all_gather", "all_reduce", "reduce_scatter")
"""Transfers of which XLA moves those of one loop iteration into another."""

FIRST_WITH_MODES = (0, 11, 1)
"""The jaxlib whose XLA has a mode for each of them in place of a flag."""


def transfers_under_products(
    hardware: Hardware, *, jaxlib: str | None = None
) -> Mapping[str, bool | str]:
    """Return the options by which XLA moves transfers between GPUs under computation.

    Args:
        hardware: What is compiled for; all GPUs have the same options.
        jaxlib: The version that compiles; the installed one if left out.

    Source: "GPU performance tips" in JAX's documentation.
    """
    found = tuple(int(part) for part in re.findall(r"\d+", jaxlib or version("jaxlib"))[:3])
    # XLA compiles nothing for an option that it does not know, so a renamed one needs both names.
    pipelined: dict[str, bool | str] = (
        {f"xla_gpu_enable_pipelined_{one}": True for one in PIPELINED}
        if found < FIRST_WITH_MODES
        else {f"xla_gpu_pipeline_{one}": "COLLECTIVE_PIPELINING_MODE_ON" for one in PIPELINED}
    )
    return {"xla_gpu_enable_latency_hiding_scheduler": True, **pipelined}
