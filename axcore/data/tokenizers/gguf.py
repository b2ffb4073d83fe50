"""`gguf_vocabulary`: any tokenizer as llama.cpp reads it, or an error that says why not.

llama.cpp has a program for each kind. `gpt2` merges bytes (BPE); how text is cut into words before
that is in the program itself, by name, and a table here lists the names whose way of cutting is
known to be the same. `llama` begins with characters and repeatedly joins the two neighbors that
make the piece with the best score. So does SentencePiece with a model of type BPE, and so does a
`tokenizer.json` that was made from one.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from axcore.data.tokenizers.gguf_vocabulary import (
    BYTE,
    CONTROL,
    NO_MERGES,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    GGUFVocabulary,
    byte_vocabulary,
    unreadable,
)
from axcore.data.tokenizers.hugging_face_tokenizer import HuggingFaceTokenizer
from axcore.data.tokenizers.sentence_piece_tokenizer import SentencePieceTokenizer
from axcore.data.tokenizers.tokenizer import ByteTokenizer, Tokenizer

_SPACE = "▁"
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
_PREPEND = {"type": "Prepend", "prepend": _SPACE}
_AT_SPACES = {
    "type": "Split",
    "pattern": {"String": " "},
    "behavior": "MergedWithPrevious",
    "invert": False,
}
"""Cuts nothing where spaces were replaced."""

_SECOND_SPACE = (
    "llama.cpp puts a space before every text, the tokenizer only before one that begins with none"
)
_Step = tuple[Any, ...]
_BYTE_STEP: _Step = ("ByteLevel", False, False)
_GPT2: _Step = ("ByteLevel", False, True)
_ENGLISH_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_NFC = "llama.cpp takes text as it is written, where the tokenizer composes letters first (NFC)"
_NEARLY = {"tekken": "llama.cpp cuts words in which capitals other than A to Z are otherwise"}
"""Where a way of llama.cpp's is not quite that of the tokenizer."""


def gguf_vocabulary(tokenizer: Tokenizer | None, size: int) -> tuple[dict[str, Any], str]:
    """Return the metadata that a GGUF file has of a tokenizer, and what llama.cpp does otherwise.

    Args:
        tokenizer: The tokenizer.
        size: Tokens of the model, of which the last ones may be unused.

    Raises:
        ConfigError: llama.cpp has nothing that makes the same tokens of text.
    """
    if tokenizer is None:
        raise unreadable("there is none, and llama.cpp reads text", "data")
    found, template = _vocabulary(tokenizer), getattr(tokenizer, "chat_template_source", None)
    metadata = found.metadata(tokenizer, size)
    if template is not None:
        metadata["tokenizer.chat_template"] = template
    tool_template = getattr(tokenizer, "tool_template_source", None)
    if tool_template is not None:
        metadata["tokenizer.chat_templates"] = ["tool_use"]
        metadata["tokenizer.chat_template.tool_use"] = tool_template
    return metadata, found.note


def _vocabulary(tokenizer: Tokenizer) -> GGUFVocabulary:
    if isinstance(tokenizer, ByteTokenizer):
        return byte_vocabulary()
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _pieces_vocabulary(tokenizer.model_proto, tokenizer.config.path)
    if isinstance(tokenizer, HuggingFaceTokenizer):
        content, path = tokenizer.content, tokenizer.config.path
        kind = content["model"]["type"]
        if kind != "BPE":
            raise unreadable(f"it is a {kind}; axcore writes BPE", path)
        if content["model"]["byte_fallback"]:
            return _merged_pieces_vocabulary(content, path)
        return _byte_level_vocabulary(content, path)
    raise unreadable(f"it is a {type(tokenizer).__name__}, which axcore does not know")


def _pieces_vocabulary(proto: bytes, path: str) -> GGUFVocabulary:
    """Return the vocabulary of a SentencePiece model.

    Args:
        proto: The model's file.
        path: Its name, for errors.

    Raises:
        ConfigError: It is not BPE, or changes text before it cuts it.
    """
    from sentencepiece import sentencepiece_model_pb2

    protos: Any = sentencepiece_model_pb2
    model = protos.ModelProto.FromString(proto)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    refused = {
        "it is not BPE": trainer.model_type != trainer.BPE,
        "it has no bytes for what it does not know": not trainer.byte_fallback,
        "its spaces are at the end of words": trainer.treat_whitespace_as_suffix,
        f"it normalizes text ({normalizer.name})": bool(normalizer.precompiled_charsmap),
        "it removes spaces that follow each other": normalizer.remove_extra_whitespaces,
        "it leaves spaces as they are": not normalizer.escape_whitespaces,
    }
    why = [reason for reason, applies in refused.items() if applies]
    if why:
        raise unreadable(", ".join(why), path)
    return GGUFVocabulary(
        model="llama",
        tokens=tuple(piece.piece for piece in model.pieces),
        types=tuple(int(piece.type) for piece in model.pieces),
        scores=tuple(float(piece.score) for piece in model.pieces),
        values=_values(normalizer.add_dummy_prefix),
    )


def _merged_pieces_vocabulary(content: dict[str, Any], path: str) -> GGUFVocabulary:
    """Return the vocabulary of a `tokenizer.json` that was made from a SentencePiece model.

    Raises:
        ConfigError: It changes text otherwise, or its merges are not those of scored pieces.
    """
    adds_space, note = _adds_space(content, path)
    tokens, kinds = _listed_tokens(content, path)
    vocabulary = content["model"]["vocab"]
    if missing := [name for name in _BYTES if name not in vocabulary]:
        raise unreadable(f"it lacks {len(missing)} bytes, {missing[0]} for one", path)
    pairs = pairs_of(content["model"]["merges"])
    ranks = _ranks(pairs, path)
    types = tuple(
        _kind(text, kind, content["model"]["unk_token"], ranks)
        for text, kind in zip(tokens, kinds, strict=True)
    )
    _check_all_merged(tokens, types, set(pairs), path)
    scores = tuple(-float(ranks.get(text, 0)) for text in tokens)
    return GGUFVocabulary(
        model="llama",
        tokens=tokens,
        types=types,
        scores=scores,
        values=_values(adds_space),
        note=note,
    )


def _values(adds_space: bool) -> dict[str, Any]:
    return {"pre": "default", "add_space_prefix": adds_space}


def _adds_space(content: dict[str, Any], path: str) -> tuple[bool, str]:
    """Return whether a text gets a space in front, and where llama.cpp does otherwise."""
    normalizers = steps_of(content["normalizer"], "normalizers")
    cuts = steps_of(content["pre_tokenizer"], "pretokenizers")
    if normalizers in ([_PREPEND, _REPLACE], [_REPLACE]) and cuts in ([], [_AT_SPACES]):
        return _PREPEND in normalizers, ""
    if not normalizers and len(cuts) == 1 and cuts[0]["type"] == "Metaspace":
        meta = cuts[0]
        if meta["replacement"] == _SPACE and not meta["split"]:
            adds_space = meta["prepend_scheme"] != "never"
            return adds_space, _SECOND_SPACE if adds_space else ""
    shown = {name: content[name] for name in ("normalizer", "pre_tokenizer")}
    raise unreadable(f"it has {json.dumps(shown, ensure_ascii=False)}", path)


def _ranks(pairs: list[tuple[str, str]], path: str) -> dict[str, int]:
    """Return for each piece where the first of its merges is, in the order of all pieces.

    Raises:
        ConfigError: Merges of pieces are mixed, so that no score of each can have their order.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for rank, (left, right) in enumerate(pairs):
        first.setdefault(left + right, rank)
        last[left + right] = rank
    mixed, end = [""], -1
    for piece, begin in first.items():
        if begin > end:
            _check_mixed(mixed, pairs, first, path)
            mixed = []
        mixed.append(piece)
        end = max(end, last[piece])
    _check_mixed(mixed, pairs, first, path)
    return {piece: rank + 1 for piece, rank in first.items()}


def _check_mixed(
    pieces: list[str], pairs: list[tuple[str, str]], first: dict[str, int], path: str
) -> None:
    """Check that pieces whose merges are mixed are cut alike: runs of one sign, as of spaces."""
    is_run = len({*"".join(pieces)}) == 1
    if len(pieces) > 1 and not (is_run and _are_cut_alike(pieces, pairs, first)):
        raise unreadable(f"merges that make {pieces[0]!r} are in several places", path)


def _are_cut_alike(runs: list[str], pairs: list[tuple[str, str]], first: dict[str, int]) -> bool:
    """Whether merges by pair and by piece cut rows of a sign alike, up to four of its runs."""
    by_pair = {pair: rank for rank, pair in enumerate(pairs)}
    for length in range(2, 4 * max(map(len, runs)) + 1):
        signs = [runs[0][0]] * length
        merged = _merged(signs, lambda left, right: by_pair.get((left, right)))
        if merged != _merged(signs, lambda left, right: first.get(left + right)):
            return False
    return True


def _merged(parts: list[str], rank_of: Callable[[str, str], int | None]) -> list[str]:
    """Return parts joined as long as two neighbors have a rank, the lowest and leftmost first."""
    while True:
        ranked = [(rank_of(a, b), i) for i, (a, b) in enumerate(pairwise(parts))]
        found = [(rank, i) for rank, i in ranked if rank is not None]
        if not found:
            return parts
        _, i = min(found)
        parts = [*parts[:i], parts[i] + parts[i + 1], *parts[i + 2 :]]


def _kind(text: str, kind: int, unknown: str | None, ranks: dict[str, int]) -> int:
    if text == unknown:
        return UNKNOWN
    if text in _BYTES:
        return BYTE
    is_merged = kind == USER_DEFINED and _SPACE in text and text in ranks
    return NORMAL if is_merged else kind  # no text has that sign before it is cut


def _check_all_merged(
    tokens: tuple[str, ...], types: tuple[int, ...], pairs: set[tuple[str, str]], path: str
) -> None:
    """Check that any two pieces which make a third one are merged, as llama.cpp does."""
    typed = list(zip(tokens, types, strict=True))
    known = {text for text, kind in typed if kind in (NORMAL, USER_DEFINED)}
    for text, kind in typed:
        if kind != NORMAL:
            continue
        for i in range(1, len(text)):
            left, right = text[:i], text[i:]
            if left in known and right in known and (left, right) not in pairs:
                raise unreadable(f"{left!r} and {right!r} are not merged to {text!r}", path)


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
    ((_LLAMA3, _BYTE_STEP), True): "llama-bpe",
    ((_LLAMA3, _BYTE_STEP), False): "smaug-bpe",
    ((_QWEN2, _BYTE_STEP), False): "qwen2",
    ((_TEKKEN, _BYTE_STEP), True): "tekken",
    ((("Digits", True), _GPT2), False): "smollm",
}
"""llama.cpp's names, by how text is cut and whether a word that is a token is not merged."""


def _written(step: _Step) -> dict[str, Any]:
    """Return a step as a `tokenizer.json` has it, the inverse of `_step`."""
    kind, *values = step
    if kind == "ByteLevel":
        return {
            "type": kind,
            "add_prefix_space": values[0],
            "trim_offsets": True,
            "use_regex": values[1],
        }
    if kind == "Split":
        pattern, behavior, invert = values
        return {
            "type": kind,
            "pattern": {"Regex": pattern},
            "behavior": behavior,
            "invert": invert,
        }
    return {"type": kind, "individual_digits": values[0]}


BYTE_LEVEL_NAMES = {
    name: ([_written(step) for step in steps], whole_words)
    for (steps, whole_words), name in _NAMES.items()
}
"""How a `tokenizer.json` cuts text, and whether a word that is a token is not merged; by name."""
_AS_TEXT: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
MERGED_SPACES: dict[bool, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {
    True: (
        [_PREPEND, _REPLACE],
        [*_AS_TEXT, {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
    ),
    False: ([_REPLACE], _AS_TEXT),
}
"""How pieces of SentencePiece replace spaces, and make text again; by whether one is put first."""


def _byte_level_vocabulary(content: dict[str, Any], path: str) -> GGUFVocabulary:
    """Return the vocabulary of a `tokenizer.json`.

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
    tokens, types = _listed_tokens(content, path)
    merges = [" ".join(pair) for pair in pairs_of(model["merges"])]
    return GGUFVocabulary(
        model="gpt2",
        tokens=tokens,
        types=types,
        values={"pre": name, "merges": merges or list(NO_MERGES)},
        note="; ".join(filter(None, (_NFC if normalizer else "", _NEARLY.get(name, "")))),
    )


def _listed_tokens(content: dict[str, Any], path: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the texts of tokens in the order of their numbers, and their types.

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
    """Return what a part of a `tokenizer.json` does one after the other."""
    if content is None:
        return []
    steps: list[dict[str, Any]] = content[parts] if content["type"] == "Sequence" else [content]
    return steps


def pairs_of(merges: list[Any]) -> list[tuple[str, str]]:
    """Return merges, which older files have as one text each."""
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
