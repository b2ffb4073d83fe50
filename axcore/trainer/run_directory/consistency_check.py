"""Comparing the processes of a run before the first step is compiled."""

import os
from collections.abc import Mapping
from typing import Any

from axcore.distributed import all_gather_str, broadcast_object, process_count
from axcore.ops import KernelPlan
from axcore.plugins import EnvironmentFlags, plugin_host
from axcore.plugins.consistency_check import first_difference, require_consistency
from axcore.trainer.run_directory.code import loaded_sources

_NAME = "comparing processes"
_MAX_FILES = 8


def check_processes_agree(
    plan: KernelPlan, config_text: str = "", data: Mapping[str, Any] | None = None
) -> None:
    """Compares plugins, versions, code, kernels, flags, configs and data over all processes.

    Processes that compute with different code may compile different steps, of which each waits in
    the first collective for the other.

    Every process must call it; a single process has nothing to compare.

    Args:
        plan: The kernels that the step uses.
        config_text: The config, one value a line.
        data: What training batches depend on.

    Raises:
        PluginError: In every process, where any two differ.
    """
    if process_count() == 1:
        return
    own = [
        *fingerprint_of_process(plan),
        *(f"config {line}" for line in config_text.splitlines()),
        *(f"data {name}: {value}" for name, value in (data or {}).items()),
    ]
    sources = _sources()
    first_lines, first_sources = broadcast_object(_NAME, lambda: (own, sources))
    differences = (first_difference(first_lines, own), _other_code(first_sources, sources))
    require_consistency(all_gather_str(_NAME, ", ".join(filter(None, differences))))


def _sources() -> dict[str, str]:
    plugins = {one.candidate.module.partition(".")[0] for one in plugin_host().installed}
    return loaded_sources({"axcore", *plugins})


def _other_code(first: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Names the files that differ among those that both processes have imported.

    Process 0 imports more: what writes metrics and shows progress.
    """
    differing = [place for place in own if first.get(place, own[place]) != own[place]]
    more = len(differing) - _MAX_FILES
    rest = f" and {more} more files" if more > 0 else ""
    return f"has other code in {', '.join(differing[:_MAX_FILES])}{rest}" if differing else ""


def fingerprint_of_process(plan: KernelPlan) -> tuple[str, ...]:
    """Returns what this process is made of, a line for each part."""
    host = plugin_host()
    variables = {"XLA_FLAGS", *(record.variable for record in host.records(EnvironmentFlags))}
    flags = [f"{name}={os.environ.get(name, '')!r}" for name in sorted(variables)]
    kernels = [f"kernel plan {one.call}: {one.kernel.key}" for one in plan.choices]
    block_sizes = [f"block sizes of {entry}" for entry in plan.block_sizes]
    return (*host.fingerprint_lines(), *flags, *kernels, *block_sizes)
