"""Small tokenizers of each kind that llama.cpp reads, and of kinds that it does not."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from pieces import train_pieces
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from axcore.data import HuggingFaceTokenizer, SentencePieceTokenizer

END = "<|end|>"
TEXTS = [
    "It's the 2024 text of a model,\nand we'll have 1234567 words.",
    "DON'T   stop.\n\n",
    "DONÉE",
] * 20
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")


def _split(pattern: str) -> Any:
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def _digits() -> Any:
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])


BYTE_LEVEL = {
    "gpt-2": (lambda: pre_tokenizers.ByteLevel(add_prefix_space=False), False),
    "llama-bpe": (lambda: _split(LLAMA3), True),
    "smaug-bpe": (lambda: _split(LLAMA3), False),
    "qwen2": (lambda: _split(QWEN2), False),
    "smollm": (_digits, False),
    "tekken": (lambda: _split(TEKKEN), True),
}
"""How text is cut, and whether words that are tokens are not merged; by llama.cpp's name."""


def byte_level(
    path: Path, pre_tokenizer: Any, *, ignore_merges: bool = False, normalizer: Any = None
) -> HuggingFaceTokenizer:
    """Writes a byte-level BPE of 400 tokens and returns it."""
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    made.pre_tokenizer, made.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        made.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=[END], show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    made.save(str(path))
    return HuggingFaceTokenizer.Config(path=str(path), eos_token=END).build()


def pieces(path: Path, **settings: Any) -> SentencePieceTokenizer:
    """Writes a SentencePiece model that leaves text as it is, and returns it."""
    plain = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    own = {"sentence_iterator": iter(TEXTS), "vocab_size": 360}
    train_pieces(path, **{**plain, **own, **settings})
    return SentencePieceTokenizer.Config(path=str(path)).build()


SPACES = {
    "prepended": (True, True, None),
    "metaspace": (False, False, lambda: pre_tokenizers.Metaspace("▁", "first", split=False)),
    "replaced": (False, True, lambda: pre_tokenizers.Split(" ", "merged_with_previous")),
}
"""Whether a space is put before a text, whether spaces are replaced, and how text is cut: as in the
files of Llama 2, in later ones of it, and in Gemma's."""


def merged_pieces(
    path: Path, source: SentencePieceTokenizer, *, spaces: str = "prepended"
) -> HuggingFaceTokenizer:
    """Writes a `tokenizer.json` of a SentencePiece model as its converters do, and returns it."""
    processor = source._processor
    texts = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    known = {text: i for i, text in enumerate(texts)}
    merges = [
        (text[:i], text[i:])
        for text in sorted(texts, key=lambda one: -processor.get_score(known[one]))
        for i in range(1, len(text))
        if text not in ("<unk>", "<s>", "</s>") and not text.startswith("<0x")
        if text[:i] in known and text[i:] in known
    ]
    made = tokenizers.Tokenizer(
        models.BPE(known, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    prepends, replaces, cut = SPACES[spaces]
    steps = [normalizers.Prepend("▁")] * prepends + [normalizers.Replace(" ", "▁")] * replaces
    if steps:
        made.normalizer = normalizers.Sequence(steps)
    if cut is not None:
        made.pre_tokenizer = cut()
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.save(str(path))
    return HuggingFaceTokenizer.Config(path=str(path), eos_token="</s>", bos_token="<s>").build()


def with_runs_last(path: Path, longest: int = 6) -> HuggingFaceTokenizer:
    """Gives a `tokenizer.json` runs of spaces that merge last, in the order of Llama 2."""
    content = json.loads(path.read_text())["model"]
    vocab, runs = content["vocab"], ["▁" * length for length in range(2, longest + 1)]
    for run in runs:
        vocab.setdefault(run, len(vocab))
    merges = [pair for pair in map(tuple, content["merges"]) if "".join(pair) not in runs]
    known = [*runs[::2], *runs[1::2], "▁"]
    merges += [(a, b) for a in known for b in known if a + b in runs]
    return rewritten(path, model_vocab=vocab, model_merges=merges)


def rewritten(path: Path, **changes: Any) -> HuggingFaceTokenizer:
    """Changes a `tokenizer.json`, and the model in it by names that begin with `model_`."""
    content = json.loads(path.read_text())
    for name, value in changes.items():
        if name.startswith("model_"):
            content["model"][name.removeprefix("model_")] = value
        else:
            content[name] = value
    path.write_text(json.dumps(content))
    return HuggingFaceTokenizer.Config(path=str(path), eos_token="</s>", bos_token="<s>").build()
