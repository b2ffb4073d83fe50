"""The manifest of a token store: what is in it, of what it was made, and with which tokenizer."""

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import attrs

from axcore.config import from_json, to_json, update_config
from axcore.config.build import owner_of
from axcore.config.json_files import read_json_file
from axcore.data.store.shard import ShardInfo
from axcore.data.tokenizers.tokenizer import Tokenizer
from axcore.errors import DataError
from axcore.whole_files import read_regular, sync_path, whole_file, write_whole

MANIFEST = "manifest.json"
FORMAT = 1
SPLITS = ("train", "validation")


@attrs.frozen
class Manifest:
    """What a store says about itself.

    Attributes:
        source: What its text is, in words.
        source_digest: Of the source's config, and of the names, sizes and times of its files.
        tokenizer: The tokenizer's config, as JSON; its files are in the store's folder.
        tokenizer_digest: See `tokenizer_digest`.
        validation_fraction: The share of the documents that are held out.
        dtype: Of a token.
        records: Records that were read.
        bad_records: Those that were left out; `quarantine.jsonl` names them.
        characters: Of the documents' texts, or tokens where they have none.
        splits: The shards of each split, in order; those without a document are left out.
        dropped: How many documents transforms left out, and why.
    """

    source: str
    source_digest: str
    tokenizer: str
    tokenizer_digest: str
    validation_fraction: float
    dtype: str
    records: int
    bad_records: int
    characters: int
    splits: dict[str, tuple[ShardInfo, ...]]
    dropped: dict[str, int] = attrs.field(factory=dict)

    def write(self, folder: Path) -> None:
        """Write the manifest; a folder that has one is a complete store."""
        content = {"format": FORMAT, **attrs.asdict(self)}
        write_whole(folder / MANIFEST, json.dumps(content, indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a store.

    Raises:
        DataError: There is none, or it cannot be understood.
    """
    path = folder / MANIFEST
    try:
        content: dict[str, Any] = read_json_file(path)
        if content.pop("format") != FORMAT:
            raise ValueError("it is of another version of axcore")
        splits = content.pop("splits")
        shards = {name: tuple(ShardInfo(**one) for one in splits[name]) for name in SPLITS}
        return Manifest(splits=shards, **content)
    except FileNotFoundError as error:
        raise DataError(
            f"There is no token store in {str(folder)!r}: it has no {MANIFEST}.",
            where=str(folder.absolute()),
            hint=f"Build one, or finish it: axcore data build EXPERIMENT {folder}",
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{MANIFEST} cannot be read: {error}.", where=str(path)) from error


def tokenizer_digest(cfg: Tokenizer.Config) -> str:
    """Return a hash of what a tokenizer does: its config, and its files by what they hold."""
    digest = blake2b(digest_size=16)
    files = _files(cfg)
    # Without paths: the same files in another folder are the same tokenizer.
    digest.update(to_json(update_config(cfg, dict.fromkeys(files, ""))).encode())
    for name in sorted(files):
        digest.update(name.encode() + blake2b(_content(files[name])).digest())
    return digest.hexdigest()


def copy_tokenizer(cfg: Tokenizer.Config, folder: Path) -> str:
    """Copy a tokenizer's files into a store, and return its config for there, as JSON."""
    names = {}
    for field, path in _files(cfg).items():
        names[field] = f"tokenizer/{field}/{Path(path).name}"
        copy = folder / names[field]
        copy.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(copy) as file:
            file.write(_content(path))
        # Both folders: the file's name is in one, and that folder's in the other.
        for made in (copy.parent.parent, folder):
            sync_path(made)
    return to_json(update_config(cfg, names))


def tokenizer_config(manifest: Manifest, folder: Path) -> Tokenizer.Config:
    """Return the config of the tokenizer that a store keeps."""
    cfg: Tokenizer.Config = from_json(manifest.tokenizer, set_in=str(folder / MANIFEST))
    return update_config(cfg, {field: str(folder / name) for field, name in _files(cfg).items()})


def digest_of(shards: Sequence[ShardInfo], dtype: str) -> str:
    """Return a short hash of all tokens and boundaries of some shards."""
    digest = blake2b(dtype.encode(), digest_size=16)
    for shard in shards:
        digest.update(f"{shard.documents} {shard.tokens} {shard.digest}\n".encode())
    return digest.hexdigest()


def _files(cfg: Tokenizer.Config) -> dict[str, str]:
    fields = owner_of(type(cfg)).file_fields
    return {name: value for name in fields if isinstance(value := getattr(cfg, name), str)}


def _content(path: str) -> bytes:
    try:
        return read_regular(Path(path).expanduser())
    except OSError as error:
        raise DataError(
            f"The tokenizer's file {path!r} cannot be read: {error.strerror}.",
            where=str(Path(path).absolute()),
        ) from error
