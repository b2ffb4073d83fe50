"""Pieces of text with scores, as llama.cpp's program `llama` merges them.

It begins with characters and joins, again and again, the two neighbours that make the piece with
the best score. So does SentencePiece with a model of type BPE, and so does a `tokenizer.json` that
was made from one.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from axcore.data.gguf_byte_level import listed_tokens, pairs_of, steps_of
from axcore.data.gguf_vocabulary import (
    BYTE,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    GGUFVocabulary,
    unreadable,
)

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


def pieces_vocabulary(proto: bytes, path: str) -> GGUFVocabulary:
    """Returns the vocabulary of a SentencePiece model.

    Args:
        proto: The model's file.
        path: Its name, for errors.

    Raises:
        ConfigError: It is no BPE, or changes text before it cuts it.
    """
    from sentencepiece import sentencepiece_model_pb2

    protos: Any = sentencepiece_model_pb2
    model = protos.ModelProto.FromString(proto)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    refused = {
        "it is no BPE": trainer.model_type != trainer.BPE,
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


def merged_pieces_vocabulary(content: dict[str, Any], path: str) -> GGUFVocabulary:
    """Returns the vocabulary of a `tokenizer.json` that was made from a SentencePiece model.

    Raises:
        ConfigError: It changes text otherwise, or its merges are not those of scored pieces.
    """
    adds_space, note = _adds_space(content, path)
    tokens, kinds = listed_tokens(content, path)
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
    """Returns whether a text gets a space in front, and where llama.cpp does otherwise."""
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
    """Returns for each piece where the first of its merges is, in the order of all pieces.

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
    """Checks that pieces whose merges are mixed are cut alike: runs of one sign, as of spaces."""
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
    """Returns parts joined as long as two neighbours have a rank, the lowest and leftmost first."""
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
    """Checks that any two pieces which make a third one are merged, as llama.cpp does."""
    typed = list(zip(tokens, types, strict=True))
    known = {text for text, kind in typed if kind in (NORMAL, USER_DEFINED)}
    for text, kind in typed:
        if kind != NORMAL:
            continue
        for i in range(1, len(text)):
            left, right = text[:i], text[i:]
            if left in known and right in known and (left, right) not in pairs:
                raise unreadable(f"{left!r} and {right!r} are not merged to {text!r}", path)
