"""`RunIdentity`: which run a directory, a checkpoint or a process belongs to.

run.json    id, made when the run began; digests of its config and of its training data
"""

import hashlib
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from axcore.config.json_files import read_json_file
from axcore.errors import CheckpointError
from axcore.whole_files import read_regular, write_whole

IDENTITY_NAME = "run.json"


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
        """Returns the identity as a checkpoint keeps it."""
        return attrs.asdict(self)

    def check(self, saved: Mapping[str, str] | None, *, step: int, directory: Path) -> None:
        """Checks that a checkpoint is of this run; one that does not say is taken for it.

        Raises:
            CheckpointError: It is another run's.
        """
        own = self.as_json()
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
    """Returns the identity of a run directory's run, made when the run begins.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = directory / IDENTITY_NAME
    digest = hashlib.sha256("\n".join(config_lines).encode()).hexdigest()[:16]
    identity = RunIdentity(_id_in(path) or secrets.token_hex(8), digest, data)
    text = json.dumps(identity.as_json(), indent=2) + "\n"
    if not path.exists() or read_regular(path).decode("utf-8") != text:
        write_whole(path, text.encode())
    return identity


def data_digest(identity: Mapping[str, Any]) -> str:
    """Returns a digest of what training batches depend on."""
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
            hint='put it back from a copy; the manifest of a checkpoint holds it as "run"',
        ) from error
