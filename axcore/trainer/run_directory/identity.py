"""`RunIdentity`: which run a directory, a checkpoint or a process belongs to.

run.json    id, made when the run began; digests of its config and of its training data

The processes of a run are compared before the first step is compiled, see `check_processes_agree`.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from axcore.config.json_files import read_json_file
from axcore.distributed import all_gather_str, broadcast_object, process_count
from axcore.errors import CheckpointError
from axcore.ops import KernelPlan
from axcore.plugins import EnvironmentFlags, plugin_host
from axcore.plugins.host import first_difference, require_consistency
from axcore.trainer.run_directory.code import loaded_sources
from axcore.whole_files import read_regular, write_whole

_IDENTITY_NAME = "run.json"


@attrs.frozen
class RunIdentity:
    """What distinguishes one run from another.

    Args:
        id: Random, made when the run began.
        config: A digest of the config, but for what may change when the run is resumed.
        data: A digest of all that its training batches depend on.
    """

    id: str
    config: str
    data: str

    def as_json(self) -> dict[str, str]:
        """Return the identity as a checkpoint keeps it."""
        return attrs.asdict(self)

    def check(self, saved: Mapping[str, str] | None, *, step: int, directory: Path) -> None:
        """Check that a checkpoint is of this run; one that does not say is taken for it.

        Raises:
            CheckpointError: It is another run's.
        """
        own = self.as_json()
        # Not the data: it may change where a mixture allows it, and has a check of its own.
        differing = [name for name in ("id", "config") if saved and saved.get(name) != own[name]]
        if saved is None or not differing:
            return
        lines = [f"- {name}: {saved.get(name)}\n+ {name}: {own[name]}" for name in differing]
        raise CheckpointError(
            f"the checkpoint of step {step} is another run's (-: that run's, +: this one's)\n"
            + "\n".join(lines),
            where=str(directory),
            hint="give every run a checkpoint.directory of its own, or leave it out",
        )


def write_identity(directory: Path, *, config_lines: list[str], data: str) -> RunIdentity:
    """Return the identity of a run directory's run, made when the run begins.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = directory / _IDENTITY_NAME
    # A part of a digest is enough to distinguish runs, and short enough to read.
    digest = hashlib.sha256("\n".join(config_lines).encode()).hexdigest()[:16]
    # Kept from the first start on: checkpoints are marked with it.
    identity = RunIdentity(_id_in(path) or secrets.token_hex(8), digest, data)
    text = json.dumps(identity.as_json(), indent=2) + "\n"
    if not path.exists() or read_regular(path).decode("utf-8") != text:
        write_whole(path, text.encode())
    return identity


def data_digest(identity: Mapping[str, Any]) -> str:
    """Return a digest of what training batches depend on."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _id_in(path: Path) -> str | None:
    if not path.exists():
        return None
    try:
        return str(read_json_file(path)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path.name} is damaged: {error}",
            where=str(path),
            hint='put it back from a copy; the manifest of a checkpoint contains it as "run"',
        ) from error


_NAME = "comparing processes"
_MAX_FILES = 8


def check_processes_agree(
    plan: KernelPlan, config_text: str = "", data: Mapping[str, Any] | None = None
) -> None:
    """Compare plugins, versions, code, kernels, flags, configs and data over all processes.

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
    # Each process says what it found, and all raise together;
    # one that raised alone would leave the others waiting.
    require_consistency(all_gather_str(_NAME, ", ".join(filter(None, differences))))


def _sources() -> dict[str, str]:
    plugins = {one.candidate.module.partition(".")[0] for one in plugin_host().installed}
    return loaded_sources({"axcore", *plugins})


def _other_code(first: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Name the files that differ among those that both processes have imported.

    Process 0 imports more: what writes metrics and shows progress.
    """
    differing = [place for place in own if first.get(place, own[place]) != own[place]]
    more = len(differing) - _MAX_FILES
    rest = f" and {more} more files" if more > 0 else ""
    return f"has other code in {', '.join(differing[:_MAX_FILES])}{rest}" if differing else ""


def fingerprint_of_process(plan: KernelPlan) -> tuple[str, ...]:
    """Return what this process is made of, a line for each part."""
    host = plugin_host()
    variables = {"XLA_FLAGS", *(record.variable for record in host.records(EnvironmentFlags))}
    flags = [f"{name}={os.environ.get(name, '')!r}" for name in sorted(variables)]
    kernels = [f"kernel plan {one.call}: {one.kernel.key}" for one in plan.choices]
    block_sizes = [f"block sizes of {entry}" for entry in plan.block_sizes]
    return (*host.fingerprint_lines(), *flags, *kernels, *block_sizes)
