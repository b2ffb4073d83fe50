"""Tokenizers that are not a `tokenizer.json`, made into one: Tekken, and merges of bytes in files.

`tekken.json` has tokens in the order in which they are merged, as tiktoken's files; `vocab.json`
and `merges.txt` are GPT-2's files, which say nothing of how words are cut: the class of the
tokenizer does.
"""

import json
from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from axcore.config.json_files import read_json
from axcore.data.tokenizers.gguf import BYTE_LEVEL_NAMES
from axcore.data.tokenizers.gguf_vocabulary import byte_signs
from axcore.data.tokenizers.hugging_face_tokenizer import published_end_ids, read_settings
from axcore.errors import DataError

TEKKEN, VOCABULARY, MERGES = "tekken.json", "vocab.json", "merges.txt"
_BESIDE = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "config.json",
    "chat_template.jinja",
)
"""Files next to a tokenizer that name its special tokens or have its template."""
_WAYS = {
    "GPT2Tokenizer": "gpt-2",
    "CodeGenTokenizer": "gpt-2",
    "Qwen2Tokenizer": "qwen2",
    "gpt2": "gpt-2",
    "qwen2": "qwen2",
    "qwen3": "qwen2",
}
"""How words are cut, by the class of a tokenizer, or by the `model_type` where that is unknown."""
_TEKKEN_SPECIAL = (
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
)
"""The first tokens of early files, which do not list them; all early versions have these."""
_HINT = "add a tokenizer.json: transformers' AutoTokenizer makes one when it saves"


def has_other_tokenizer(folder: Path) -> bool:
    """Whether a folder has a tokenizer of one of these formats."""
    return (folder / TEKKEN).is_file() or all(
        (folder / name).is_file() for name in (VOCABULARY, MERGES)
    )


def other_tokenizer_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder's tokenizer, by name: `tokenizer.json` and those next to it.

    Raises:
        DataError: A file is damaged, or nothing says how words are cut.
    """
    files = {name: (folder / name).read_bytes() for name in _BESIDE if (folder / name).is_file()}
    if (folder / TEKKEN).is_file():
        content = _tekken(folder / TEKKEN)
        own = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        files.setdefault("tokenizer_config.json", json.dumps(own).encode())
    else:
        content = _merged_bytes(folder)
    return {**files, "tokenizer.json": json.dumps(content).encode()}


def _tekken(path: Path) -> dict[str, Any]:
    """Return the `tokenizer.json` of a `tekken.json`.

    Raises:
        DataError: It is damaged.
    """
    found = read_json(path, TEKKEN, error=DataError)
    try:
        config = found["config"]
        num_special = int(config["default_num_special_tokens"])
        count = int(config["default_vocab_size"]) - num_special
        ranked = [b64decode(one["token_bytes"]) for one in found["vocab"][:count]]
        listed = found.get("special_tokens") or [
            {"rank": rank, "token_str": name} for rank, name in enumerate(_TEKKEN_SPECIAL)
        ]
        names = {int(one["rank"]): str(one["token_str"]) for one in listed}
        pattern = str(config["pattern"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{TEKKEN} is damaged: {error!r}.", where=str(path), hint=_HINT) from error
    special = [names.get(i, f"<SPECIAL_{i}>") for i in range(num_special)]
    signs = byte_signs()
    texts = ["".join(signs[byte] for byte in token) for token in ranked]
    vocabulary = {name: i for i, name in enumerate(special)}
    vocabulary |= {text: num_special + rank for rank, text in enumerate(texts)}
    known = set(texts)
    merges = [
        (text[:cut], text[cut:])
        for text in texts
        for cut in range(1, len(text))
        if text[:cut] in known and text[cut:] in known
    ]
    steps = [
        {
            "type": "Split",
            "pattern": {"Regex": pattern},
            "behavior": "Isolated",
            "invert": False,
        },
        _byte_level(use_regex=False),
    ]
    first = {"SpecialToken": {"id": special[1], "type_id": 0}}
    begins = {
        "type": "TemplateProcessing",
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [
            first,
            {"Sequence": {"id": "A", "type_id": 0}},
            {"Sequence": {"id": "B", "type_id": 1}},
        ],
        "special_tokens": {special[1]: {"id": special[1], "ids": [1], "tokens": [special[1]]}},
    }
    content = _content(vocabulary, merges, special, steps, ignore_merges=True)
    return {**content, "post_processor": begins}


def _merged_bytes(folder: Path) -> dict[str, Any]:
    """Return the `tokenizer.json` of `vocab.json` and `merges.txt`.

    Raises:
        DataError: A file is damaged, or nothing says how words are cut.
    """
    way = _way(folder)
    if way not in _WAYS:
        raise DataError(
            f"The folder has {VOCABULARY} and {MERGES} of a {way}, and nothing here knows how "
            f"that cuts words; known are {', '.join(_WAYS)}.",
            where=str(folder),
            hint=_HINT,
        )
    name = _WAYS[way]
    vocabulary = read_json(folder / VOCABULARY, VOCABULARY, error=DataError)
    lines = (folder / MERGES).read_text(encoding="utf-8").split("\n")
    pairs = [line.split(" ") for line in lines if line.strip() and not line.startswith("#version")]
    strange = [
        " ".join(pair) for pair in pairs if len(pair) != 2 or "".join(pair) not in vocabulary
    ]
    if strange:
        raise DataError(
            f"{MERGES} has {strange[0]!r:.80}, which is not a merge of two tokens of {VOCABULARY}.",
            where=str(folder / MERGES),
            hint="take both files from one model",
        )
    steps, whole_words = BYTE_LEVEL_NAMES[name]
    content = _content(
        vocabulary,
        [(left, right) for left, right in pairs],
        _special(folder, vocabulary),
        steps,
        ignore_merges=whole_words,
    )
    return {**content, "normalizer": {"type": "NFC"} if name == "qwen2" else None}


def _way(folder: Path) -> str:
    """Return the class of a folder's tokenizer, or the type of its model where it names none."""
    for name, field in (
        ("tokenizer_config.json", "tokenizer_class"),
        ("config.json", "model_type"),
    ):
        path = folder / name
        found = read_json(path, name, error=DataError).get(field) if path.is_file() else None
        if found is not None:
            return str(found).removesuffix("Fast")
    return "tokenizer without a name"


def _special(folder: Path, vocabulary: Mapping[str, int]) -> list[str]:
    """Return the special tokens of a vocabulary, which files next to it name."""
    paths = (folder / name for name in ("tokenizer_config.json", "special_tokens_map.json"))
    settings = read_settings(*(str(path) if path.is_file() else None for path in paths))
    ends = set(published_end_ids(folder))
    named = [*settings.tokens.values(), *(text for text, i in vocabulary.items() if i in ends)]
    return [name for name in dict.fromkeys(named) if name in vocabulary]


def _content(
    vocabulary: Mapping[str, int],
    merges: list[tuple[str, str]],
    special: list[str],
    steps: list[dict[str, Any]],
    *,
    ignore_merges: bool,
) -> dict[str, Any]:
    """Return a `tokenizer.json` of merges of bytes."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": vocabulary[name], "content": name, **plain, "special": True} for name in special
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(added, key=lambda one: int(str(one["id"]))),
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": _byte_level(use_regex=True),
        "model": {
            "type": "BPE",
            "vocab": dict(vocabulary),
            "merges": merges,
            "ignore_merges": ignore_merges,
            "byte_fallback": False,
        },
    }


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }
