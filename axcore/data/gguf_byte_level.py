"""Byte-level BPE of a `tokenizer.json`, as llama.cpp's program `gpt2` reads it.

How text is cut into words before bytes are merged is in llama.cpp's program, by name; the table
below has the names of the ways of which axcore knows that they are the same.
"""

import json
from typing import Any

from axcore.data.gguf_vocabulary import (
    CONTROL,
    NO_MERGES,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    GGUFVocabulary,
    unreadable,
)

_Step = tuple[Any, ...]
_BYTES: _Step = ("ByteLevel", False, False)
_GPT2: _Step = ("ByteLevel", False, True)
_ENGLISH_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _split(pattern: str) -> _Step:
    return ("Split", pattern, "Isolated", False)


_LLAMA3 = _split(rf"{_ENGLISH_ENDINGS}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS_AND_SPACES}")
_QWEN2 = _split(rf"{_ENGLISH_ENDINGS}|{_WORDS}|\p{{N}}|{_SIGNS_AND_SPACES}")
_TEKKEN = _split(
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NAMES: dict[tuple[tuple[_Step, ...], bool], str] = {
    ((_GPT2,), False): "gpt-2",
    ((_LLAMA3, _BYTES), True): "llama-bpe",
    ((_LLAMA3, _BYTES), False): "smaug-bpe",
    ((_QWEN2, _BYTES), False): "qwen2",
    ((_TEKKEN, _BYTES), True): "tekken",
    ((("Digits", True), _GPT2), False): "smollm",
}
"""llama.cpp's names, by how text is cut and whether a word that is a token is not merged."""
_NFC = "llama.cpp takes text as it is written, where the tokenizer composes letters first (NFC)"
_NEARLY = {"tekken": "llama.cpp cuts words in which capitals other than A to Z are otherwise"}
"""Where a way of llama.cpp's is not quite that of the tokenizer."""


def byte_level_vocabulary(content: dict[str, Any], path: str) -> GGUFVocabulary:
    """Returns the vocabulary of a `tokenizer.json`.

    Raises:
        ConfigError: It cuts text as no program of llama.cpp does, or changes it first.
    """
    model = content["model"]
    for field in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model[field]:
            raise unreadable(f"its {field} is {model[field]!r}", path)
    normalizer = content["normalizer"]
    if normalizer not in (None, {"type": "NFC"}):
        raise unreadable(f"its normalizer is {json.dumps(normalizer)}", path)
    steps = tuple(_step(one) for one in steps_of(content["pre_tokenizer"], "pretokenizers"))
    whole_words = model["ignore_merges"]
    if (steps, whole_words) not in _NAMES:
        shown = json.dumps(content["pre_tokenizer"], ensure_ascii=False)
        known = ", ".join(_NAMES.values())
        raise unreadable(
            f"its pre_tokenizer is {shown}, with ignore_merges {whole_words}; axcore knows the "
            f"ways of {known}",
            path,
        )
    name = _NAMES[steps, whole_words]
    tokens, types = listed_tokens(content, path)
    merges = [" ".join(pair) for pair in pairs_of(model["merges"])]
    return GGUFVocabulary(
        model="gpt2",
        tokens=tokens,
        types=types,
        values={"pre": name, "merges": merges or list(NO_MERGES)},
        note="; ".join(filter(None, (_NFC if normalizer else "", _NEARLY.get(name, "")))),
    )


def listed_tokens(content: dict[str, Any], path: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Returns the texts of tokens in the order of their numbers, and their types.

    Raises:
        ConfigError: A token is read out of a text together with what is around it.
    """
    found = {number: (text, NORMAL) for text, number in content["model"]["vocab"].items()}
    for token in content["added_tokens"]:
        kind = CONTROL if token["special"] else USER_DEFINED
        around = [name for name in ("lstrip", "rstrip", "single_word") if token[name]]
        if around and not token["special"]:
            raise unreadable(f"its token {token['content']!r} has {', '.join(around)}", path)
        found[token["id"]] = token["content"], kind
    every = [found.get(i, (f"[PAD{i}]", UNUSED)) for i in range(max(found) + 1)]
    texts, kinds = zip(*every, strict=True)
    return texts, kinds


def steps_of(content: dict[str, Any] | None, parts: str) -> list[dict[str, Any]]:
    """Returns what a part of a `tokenizer.json` does one after the other."""
    if content is None:
        return []
    steps: list[dict[str, Any]] = content[parts] if content["type"] == "Sequence" else [content]
    return steps


def pairs_of(merges: list[Any]) -> list[tuple[str, str]]:
    """Returns merges, which older files have as one text each."""
    pairs = (one.split(" ", 1) if isinstance(one, str) else one for one in merges)
    return [(left, right) for left, right in pairs]


def _step(content: dict[str, Any]) -> _Step:
    kind = content["type"]
    if kind == "ByteLevel":
        return (kind, content["add_prefix_space"], content["use_regex"])
    if kind == "Split":
        return (kind, content["pattern"].get("Regex"), content["behavior"], content["invert"])
    if kind == "Digits":
        return (kind, content["individual_digits"])
    return (kind,)
