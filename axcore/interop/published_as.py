"""`PublishedAs`: which published model a config was read from, so that exports are that again.

Numbers follow from the rest of a model's config. What is here changes none, and programs that read
an export depend on it all the same: the family, and with it the class of the tokenizer; tokens that
end texts; how many a row has at most; with which temperature answers are sampled; the licence.
"""

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from axcore.config import REQUIRED, config
from axcore.config.json_files import is_fetched, read_json
from axcore.errors import CheckpointError

GENERATION = "generation_config.json"
CARD = "README.md"
_LICENCE = re.compile(
    r"(LICEN[CS]E|NOTICE|COPYING|USE_POLICY|USAGE_POLICY)([._-].*)?", re.IGNORECASE
)
_TOKENIZER = re.compile(
    r"tokenizer\.(json|model)|tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json"
    r"|vocab\.(json|txt)|merges\.txt|tekken\.json|chat_template\.(jinja|json)"
)
_READ = re.compile(r"\..*|config\.json|.*\.safetensors(\.index\.json)?")
_OTHER_WEIGHTS = re.compile(
    r".*\.(bin|bin\.index\.json|pth?|ckpt|h5|msgpack|ot|gguf|onnx|onnx_data|tflite|mlmodel)"
)


@config
class PublishedAs:
    """What a published model's folder says besides what the model computes.

    Attributes:
        family: The `model_type`.
        name: What the model is called: that of its folder.
        max_length: Tokens of a row at most, where it says so.
        fields: Fields of its `config.json` that change no number here.
        unknown_fields: Those of them that could change some, and were allowed.
        files: Paths of its files that exports have again; a run keeps copies.
        left_out: Names of its files that are not read, and that exports lack.
    """

    file_fields: ClassVar[tuple[str, ...]] = ("files",)

    family: str = REQUIRED
    name: str = ""
    max_length: int | None = None
    fields: Mapping[str, Any] = {}
    unknown_fields: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def name_of(folder: Path) -> str:
    """Returns what a folder's model is called: on the Hub, if the folder is in its cache."""
    parent = folder.absolute().parent.parent.name  # models--OWNER--NAME/snapshots/COMMIT
    owner_and_name = parent.removeprefix("models--").split("--", maxsplit=1)
    return "/".join(owner_and_name) if parent.startswith("models--") else folder.absolute().name


def files_beside(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the paths of files of a folder that exports have again, and the names of others.

    Weights in other formats are not named: the model has them.
    """
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    kept = [name for name in names if _is_kept(name) and is_fetched(folder / name)]
    others = [name for name in names if name not in kept]
    left = [n for n in others if not (_READ.fullmatch(n) or _OTHER_WEIGHTS.fullmatch(n))]
    return tuple(str(folder / name) for name in kept), tuple(left)


def _is_kept(name: str) -> bool:
    is_named = name in (GENERATION, CARD)
    return is_named or bool(_LICENCE.fullmatch(name) or _TOKENIZER.fullmatch(name))


def exported_files(
    published: PublishedAs | None, tokens: Mapping[str, Any], files: Mapping[str, bytes] | None
) -> dict[str, bytes]:
    """Returns the files of an export besides `config.json` and weights, by name.

    What the published model had and the export lacks is named by a warning.

    Args:
        published: The model that was read; None where the model began here.
        tokens: The numbers of tokens by field, `eos_token_id` for one.
        files: Those that whoever exports brings, the tokenizer's among them; where None, the
            published model's tokenizer is written.
    """
    paths = (
        {Path(path).name: Path(path).expanduser() for path in published.files} if published else {}
    )
    missing = sorted(name for name, path in paths.items() if not path.is_file())
    found = {name: path.read_bytes() for name, path in paths.items() if name not in missing}
    settings: dict[str, Any] = {}
    if found.pop(GENERATION, None) is not None:
        settings = read_json(paths[GENERATION], GENERATION, error=CheckpointError)
    card = found.pop(CARD, b"").decode()
    if files is not None and not _is_tokenizer_of(found, files):
        found = {name: data for name, data in found.items() if not _TOKENIZER.fullmatch(name)}
    if settings or tokens:
        found[GENERATION] = (json.dumps({**settings, **tokens}, indent=2) + "\n").encode()
    if published is not None:
        found[CARD] = _card(published, card).encode()
        missing += published.left_out
    if missing := sorted(set(missing) - set(files or ())):
        what = (published and published.name) or "the published model"
        warnings.warn(f"the export lacks files that {what} had: {', '.join(missing)}", stacklevel=3)
    return {**found, **(files or {})}


def _is_tokenizer_of(found: Mapping[str, bytes], files: Mapping[str, bytes]) -> bool:
    """Whether the tokenizer among some files is that of the published model."""
    names = [name for name in ("tokenizer.json", "tokenizer.model") if name in files]
    return bool(names) and all(files[name] == found.get(name) for name in names)


def _card(published: PublishedAs, text: str) -> str:
    """Returns a model card that names the base, under the licence that the base's card names."""
    header = re.match(r"---\n(.*?\n)---\n", text, re.DOTALL)
    lines = header[1].splitlines() if header else []
    licence = [line for line in lines if re.match(r"licen[cs]e(_name|_link)?: *\S", line)]
    metadata = [f"base_model: {published.name}", *licence, "library_name: transformers"]
    return (
        "---\n" + "\n".join(metadata) + "\n---\n\n"
        f"A model of type {published.family}, written by axcore. Its weights began as those of "
        f"{published.name}, and may have been trained further.\n"
    )
