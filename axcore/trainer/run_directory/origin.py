"""What opening a run needs in addition to its config and checkpoints, so that it can be moved.

origin.json     where the run was started, which files and which code belong to it, with digests
files/          copies of the files that the config names, a tokenizer's for example
code/           code of its own, see `axcore.trainer.run_directory.code`
earlier_code/   the same of earlier starts, where it was other code, by digest
"""

import hashlib
import hmac
import json
import os
import secrets
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from axcore.config import is_config, update_config, walk
from axcore.config.json_files import read_json_file
from axcore.config.paths import format_path
from axcore.errors import CheckpointError
from axcore.trainer.run_directory.code import RunCode, diff_sources
from axcore.whole_files import read_regular, write_whole

_ORIGIN_NAME = "origin.json"
FILES = "files"
CODE = "code"
EARLIER_CODE = "earlier_code"


def write_origin(run: Path, cfg: Any, code: RunCode) -> None:
    """Write `origin.json` of a new run, and copies what belongs to it into its directory.

    Code of an earlier start stays until `renew_code`: this one may yet fail to resume.

    Raises:
        CheckpointError: A file is no longer what it was when the run began.
    """
    files = {
        path: _copied(run, path, Path(value).expanduser())
        for path, value in _paths(cfg, "file_fields")
    }
    origin: dict[str, Any] = {"working_directory": os.getcwd(), "files": files}
    try:
        before = read_origin(run)
    # A damaged record must not keep a run from training on.
    except CheckpointError as error:  # opening the run needs it; training does not
        warnings.warn(f"{error.what}; it is written again from this start", stacklevel=2)
        before = {}
    if before:
        origin |= {name: before[name] for name in ("code", "packages") if name in before}
    else:
        origin |= _copied_code(run, code)
    _write_json(run, origin)


def renew_code(run: Path, code: RunCode) -> str:
    """Make the code of this start the run's, and keep that of the start before where it differs.

    Returns:
        How the code changed, for people; empty where it did not.
    """
    before = read_origin(run)
    own = before["code"] or {"files": {}}
    earlier = {place: _source(run / CODE / place) for place in own["files"]}
    pair = (earlier, code.files)
    both = earlier.keys() & code.files.keys()
    changes = ""
    if earlier != code.files:
        kept = run / EARLIER_CODE / code_digest(earlier)
        for place, source in earlier.items():
            _write(kept / place, source.encode())
            (run / CODE / place).unlink(missing_ok=True)
        # Only files of both starts are compared. A file of one start belongs to something that only
        # that start's config names, and the comparison of configs shows it.
        changes = diff_sources(*({k: v for k, v in one.items() if k in both} for one in pair))
        changes += f"\nthe code before is kept in {kept}" if changes else ""
    _write_json(run, before | _copied_code(run, code))
    return changes


def code_digest(files: Mapping[str, str]) -> str:
    """Return a short digest of files of code; empty where there are none."""
    return _digest(json.dumps(dict(files), sort_keys=True).encode())[:16] if files else ""


def _copied_code(run: Path, code: RunCode) -> dict[str, Any]:
    """Copy code into the run, and return what `origin.json` records of it."""
    for place, source in code.files.items():
        _write(run / CODE / place, source.encode())
    digests = {place: _digest(source.encode()) for place, source in code.files.items()}
    own: dict[str, Any] = {"modules": code.modules, "files": digests, "script": code.script}
    is_own = code.modules or code.files
    return {
        "code": {**own, "signature": _signature(own)} if is_own else None,
        "packages": code.packages,
    }


def _source(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _write_json(run: Path, origin: Mapping[str, Any]) -> None:
    write_whole(run / _ORIGIN_NAME, (json.dumps(origin, indent=2) + "\n").encode())


def read_origin(run: Path) -> dict[str, Any]:
    """Return what `origin.json` says; an empty dict where a run has none.

    Raises:
        CheckpointError: The file is damaged, or a copy is not what it was when the run began.
    """
    path = run / _ORIGIN_NAME
    if not path.exists():
        return {}
    try:
        origin: dict[str, Any] = read_json_file(path)
        code = origin["code"] or {"files": {}}
        digests = {f"{FILES}/{one['name']}": one["sha256"] for one in origin["files"].values()}
        digests |= {f"{CODE}/{place}": digest for place, digest in code["files"].items()}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path.name} is damaged: {error}", where=str(path)) from error
    for place, digest in digests.items():
        _check_digest(run / place, digest)
    return origin


def is_signed(code: Mapping[str, Any]) -> bool:
    """Whether this user's own training recorded the code; whoever has the key signs alike."""
    own = {name: code[name] for name in ("modules", "files", "script")}
    # In constant time, and None where there is no key: nobody has signed.
    signature = _signature(own)
    return signature is not None and hmac.compare_digest(signature, str(code["signature"]))


def opened_config(cfg: Any, run: Path, origin: Mapping[str, Any]) -> Any:
    """Return a run's config with its copies of files, and paths from where it was started."""
    changes: dict[str, Any] = {
        path: str((run / FILES / one["name"]).absolute())
        for path, one in origin.get("files", {}).items()
    }
    for path, value in _paths(cfg, "folder_fields"):
        if "://" not in value:
            changes[path] = str(
                Path(origin.get("working_directory", "."), Path(value).expanduser())
            )
    return update_config(cfg, changes)


def _paths(cfg: Any, fields: str) -> Iterator[tuple[str, str]]:
    """Yield path and value of the config's fields that its classes list under `fields`.

    Of a field that contains several values each has a path.
    """
    for path, node in walk(cfg):
        cls = type(node)
        owner = getattr(cls, "__config_owner__", cls) if is_config(node) else None
        for name in getattr(owner, fields, ()):
            value = getattr(node, name)
            several = enumerate(value) if isinstance(value, tuple) else ()
            places = {(*path, name, i): one for i, one in several} or {(*path, name): value}
            for place, one in places.items():
                if isinstance(one, str):
                    yield format_path(place), one


def _copied(run: Path, path: str, file: Path) -> dict[str, str]:
    """Copy a file into the run, where it is not there yet; says under which name and digest."""
    name = f"{path}/{file.name}"
    copy, data = run / FILES / name, file.read_bytes()
    if copy.exists() and read_regular(copy) != data:
        raise CheckpointError(
            f"{file} is not the file that the run began with",
            where=path,
            hint=f"put it back from {copy}, or use another --dir",
        )
    _write(copy, data)
    return {"name": name, "sha256": _digest(data)}


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or read_regular(path) != data:
        write_whole(path, data)


def _check_digest(path: Path, digest: str) -> None:
    found = _digest(path.read_bytes()) if path.is_file() else "missing"
    if found != digest:
        raise CheckpointError(
            f"{path.name} is not what it was when the run began: its digest is {found[:12]}, "
            f"and was {digest[:12]}",
            where=str(path),
            hint="put it back from a copy of the run",
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _signature(own: Mapping[str, Any]) -> str | None:
    """Return a signature by the user's own key; None where no key can be kept."""
    key = _key()
    text = json.dumps(own, sort_keys=True).encode()
    return None if key is None else hmac.new(key, text, hashlib.sha256).hexdigest()


def _key() -> bytes | None:
    """Return the key of this user, made where there is none; None where it cannot be kept."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(state) / "axcore" / "run_key"
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(32))
        return path.read_bytes()
    except OSError:
        return None
