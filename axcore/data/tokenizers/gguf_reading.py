"""`gguf_tokenizer_files`: the tokenizer of a GGUF file, as the files that Hugging Face has of it.

A file names llama.cpp's program: `gpt2` merges bytes, and cuts words before as a name says; `llama`
joins pieces by their scores, which as a `tokenizer.json` are merges in the order of the scores.
"""

import json
from collections.abc import Mapping
from typing import Any

from axcore.data.tokenizers.gguf import BYTE_LEVEL_NAMES, MERGED_SPACES
from axcore.data.tokenizers.gguf_vocabulary import (
    CONTROL,
    NO_MERGES,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
)
from axcore.data.tokenizers.hugging_face_tokenizer import TOOL_TEMPLATE
from axcore.errors import DataError

_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""Roles of tokens in a `tokenizer_config.json`, and in the keys of a file."""
_ENDS = ("eos", "eot", "eom")
_ALIASES = {
    "deepseek-r1-qwen": "qwen2",
    "falcon3": "llama-bpe",
    "lfm2": "llama-bpe",
    "llama-v3": "llama-bpe",
    "llama3": "llama-bpe",
    "pixtral": "llama-bpe",
}
"""Names of llama.cpp for ways of cutting words that have another name too."""
_COMPOSING = ("qwen2",)
"""Ways of tokenizers that compose letters first, which llama.cpp does not say."""
_BEGINNING = ("llama-bpe", "tekken")
"""Ways of tokenizers that begin texts with a token, where a file does not say whether they do."""
_HINT = "fetch the model from Hugging Face; for the weights alone: ax.from_hugging_face"


def gguf_tokenizer_files(metadata: Mapping[str, Any], where: str) -> dict[str, bytes]:
    """Return the files of a tokenizer, by name: `tokenizer.json` and those next to it.

    Args:
        metadata: Of a GGUF file.
        where: The file, for errors.

    Raises:
        DataError: It is of a kind that is not read, or incomplete.
    """
    start = "tokenizer.ggml."
    said = {key.removeprefix(start): one for key, one in metadata.items() if key.startswith(start)}
    for key, value in said.items():
        if not _is_as_said(key, value):
            raise DataError(
                f"The tokenizer of the file has {key}={value!r:.80}, which is of another type.",
                where=where,
                hint="fetch the file again",
            )
    kind = said.get("model")
    if kind not in _CONTENTS:
        raise DataError(
            f"The tokenizer of the file is {kind!r}, which is not read; read are "
            + ", ".join(_CONTENTS),
            where=where,
            hint=_HINT,
        )
    tokens, types = said.get("tokens") or [], said.get("token_type") or []
    types = types or [NORMAL] * len(tokens)
    numbers: dict[str, int] = {
        role: said[f"{key}_token_id"] for role, key in _ROLES.items() if f"{key}_token_id" in said
    }
    strange = [number for number in numbers.values() if not 0 <= number < len(tokens)]
    if len(types) != len(tokens) or strange or "eos" not in numbers:
        raise DataError(
            f"The tokenizer of the file has {len(tokens)} tokens, {len(types)} types of them, and "
            f"the special tokens {numbers}, of which eos is needed.",
            where=where,
            hint=_HINT,
        )
    names = {role: tokens[number] for role, number in numbers.items()}
    content, begins = _CONTENTS[kind](said, tokens, types, where)
    if said.get("add_bos_token", begins) and "bos" in names:
        content["post_processor"] = _beginning(names["bos"], numbers["bos"])
    ends = [said.get(f"{name}_token_id") for name in _ENDS]
    settings = {f"{role}_token": name for role, name in names.items()}
    files = {
        "tokenizer.json": content,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **settings},
        "generation_config.json": {
            "eos_token_id": list(dict.fromkeys(end for end in ends if end is not None))
        },
    }
    found = {name: json.dumps(one).encode() for name, one in files.items()}
    for key, name in (("", "chat_template.jinja"), (".tool_use", TOOL_TEMPLATE)):
        if (template := metadata.get(f"tokenizer.chat_template{key}")) is not None:
            found[name] = template.encode()
    return found


_TYPES: dict[str, type] = {"model": str, "pre": str}
_ITEMS: dict[str, type] = {"tokens": str, "merges": str, "token_type": int, "scores": float}


def _is_as_said(key: str, value: Any) -> bool:
    """Whether a value of the metadata has the type that the format says."""
    if key in _ITEMS:
        return isinstance(value, list) and all(type(one) is _ITEMS[key] for one in value)
    wanted = int if key.endswith("_token_id") else _TYPES.get(key)
    return wanted is None or type(value) is wanted


def _byte_level(
    said: Mapping[str, Any], tokens: list[str], types: list[int], where: str
) -> tuple[dict[str, Any], bool]:
    """Return the `tokenizer.json` of merges of bytes, and whether texts begin with a token."""
    name = said.get("pre", "")
    name = _ALIASES.get(name, name)
    if name not in BYTE_LEVEL_NAMES:
        raise DataError(
            f"The tokenizer of the file cuts text in the way {name!r}, which is not read; read are "
            + ", ".join([*BYTE_LEVEL_NAMES, *_ALIASES]),
            where=where,
            hint=_HINT,
        )
    steps, whole_words = BYTE_LEVEL_NAMES[name]
    merges = [one for one in said.get("merges") or () if one not in NO_MERGES]
    model = {
        "type": "BPE",
        "vocab": _vocabulary(tokens, types),
        "merges": [one.split(" ", 1) for one in merges],
        "ignore_merges": whole_words,
        "byte_fallback": False,
    }
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    content = {
        **_content(model, tokens, types),
        "normalizer": {"type": "NFC"} if name in _COMPOSING else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": {**byte_level, "use_regex": True},
    }
    return content, name in _BEGINNING


def _pieces(
    said: Mapping[str, Any], tokens: list[str], types: list[int], where: str
) -> tuple[dict[str, Any], bool]:
    """Return the `tokenizer.json` of scored pieces, and whether texts begin with a token."""
    scores = said.get("scores") or []
    if len(scores) != len(tokens):
        raise DataError(
            f"The tokenizer of the file has {len(tokens)} tokens and {len(scores)} scores.",
            where=where,
            hint=_HINT,
        )
    model = {
        "type": "BPE",
        "vocab": _vocabulary(tokens, types, has_added=True),
        "merges": _merges_of(tokens, types, scores),
        "unk_token": tokens[types.index(UNKNOWN)] if UNKNOWN in types else None,
        "fuse_unk": True,
        "byte_fallback": True,
    }
    adds_space = said.get("add_space_prefix", True)
    normalizers, decoders = MERGED_SPACES[bool(adds_space)]
    content = {
        **_content(model, tokens, types),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }
    return content, True


_CONTENTS = {"gpt2": _byte_level, "llama": _pieces}


def _content(model: dict[str, Any], tokens: list[str], types: list[int]) -> dict[str, Any]:
    """Return what all tokenizers have: the model, and the tokens that are read out of a text."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": tokens[number], **plain, "special": types[number] != USER_DEFINED}
        for number in range(len(tokens))
        if _is_added(tokens[number], types[number])
    ]
    settings = {"version": "1.0", "truncation": None, "padding": None, "post_processor": None}
    return {**settings, "added_tokens": added, "model": model}


def _is_added(text: str, kind: int) -> bool:
    # Of pieces, those with the sign of a space are of normal text: no text has it when it is read.
    return kind in (CONTROL, UNKNOWN) or (kind == USER_DEFINED and "▁" not in text)


def _vocabulary(tokens: list[str], types: list[int], *, has_added: bool = False) -> dict[str, int]:
    """Return the numbers of tokens of normal text, and of others where these would have none."""
    used = [i for i, kind in enumerate(types) if kind != UNUSED]
    normal = [i for i in used if not _is_added(tokens[i], types[i])]
    # Added tokens get the numbers behind the vocabulary. Where they are not these, they are in it.
    is_behind = normal == list(range(len(normal))) and used == list(range(len(used)))
    numbers = normal if is_behind and not has_added else used
    return {tokens[i]: i for i in numbers}


def _merges_of(tokens: list[str], types: list[int], scores: list[float]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that are one piece together, those with the best score first."""
    own = [i for i, kind in enumerate(types) if kind in (NORMAL, USER_DEFINED)]
    own = [i for i in own if not _is_added(tokens[i], types[i])]
    known = {tokens[i] for i in own}
    return [
        (text[:cut], text[cut:])
        for text in (tokens[i] for i in sorted(own, key=lambda i: -scores[i]))
        for cut in range(1, len(text))
        if text[:cut] in known and text[cut:] in known
    ]


def _beginning(name: str, number: int) -> dict[str, Any]:
    """Return the step that begins a text with a token."""
    first, text = (
        {"SpecialToken": {"id": name, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    )
    second = {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, first, second],
        "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]}},
    }
