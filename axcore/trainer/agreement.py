"""Comparing the processes of a run before the first step is compiled."""

import json
import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from axcore.ops import KernelPlan
from axcore.plugins import EnvironmentFlags, plugin_host
from axcore.plugins.agreement import require_agreement


def check_processes_agree(plan: KernelPlan) -> None:
    """Compares plugins, versions, kernels and environment flags over all processes.

    Every process must call it; a single process has nothing to compare.

    Raises:
        PluginError: In every process, where any two differ.
    """
    if jax.process_count() > 1:
        require_agreement(_gathered(own_lines(plan)))


def own_lines(plan: KernelPlan) -> tuple[str, ...]:
    """Returns what this process is made of, a line for each part."""
    host = plugin_host()
    variables = {"XLA_FLAGS", *(record.variable for record in host.records(EnvironmentFlags))}
    flags = [f"{name}={os.environ.get(name, '')!r}" for name in sorted(variables)]
    kernels = [f"kernel plan {one.call}: {one.kernel.key}" for one in plan.choices]
    return (*host.fingerprint_lines(), *flags, *kernels)


def _gathered(lines: Sequence[str]) -> list[list[str]]:
    """Returns the lines of every process, in every process."""
    from jax.experimental import multihost_utils

    gather: Any = multihost_utils.process_allgather
    text = np.frombuffer(json.dumps(list(lines)).encode(), np.uint8)
    lengths = gather(np.array(text.size, np.int32))
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: text.size] = text
    texts = gather(padded)
    return [
        json.loads(bytes(row[:length])) for row, length in zip(texts, lengths.ravel(), strict=True)
    ]
