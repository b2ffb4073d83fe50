"""What random logits sample under a grammar is always of its language."""

import importlib
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tokenizers
from chat_tokenizer import write_chat_tokenizer
from gguf_tokenizers import BYTE_LEVEL, byte_level, merged_pieces, pieces
from model_server import chat_tokenizer
from tokenizers import models

from axcore.data import ByteTokenizer, HuggingFaceTokenizer
from axcore.errors import RequestError
from axcore.inference.detokenizer import IncrementalDetokenizer
from axcore.inference.grammar import (
    KEPT_GRAMMARS,
    MAX_OPTIONAL,
    GrammarCompiler,
    json_schema,
    lark,
    mask_words,
    regex,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["the text", "日本"]},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}
SUM = """start: term ("+" term)*
term: NUMBER | "(" start ")"
NUMBER: /[0-9]{1,3}/
"""
KINDS = ("bytes", "byte-level", "pieces", "merged pieces")


@pytest.fixture(scope="module")
def compilers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    small = pieces(folder / "pieces.model", byte_fallback=True)
    found = {
        "bytes": ByteTokenizer.Config().build(),
        "byte-level": byte_level(folder / "byte.json", BYTE_LEVEL["gpt-2"][0]()),
        "pieces": small,
        "merged pieces": merged_pieces(folder / "merged.json", small),
    }
    return {kind: (tokenizer, GrammarCompiler(tokenizer)) for kind, tokenizer in found.items()}


def allowed_tokens(matcher, vocab_size):
    mask = np.full(mask_words(vocab_size), 0xFFFFFFFF, np.uint32)
    matcher.fill(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


def random_answer(tokenizer, matcher, seed, max_tokens=400):
    """Returns a text sampled by random logits, and whether it ended; the model is a bit wider."""
    random = np.random.default_rng(seed)
    text, answer = "", IncrementalDetokenizer(tokenizer, tokenizer.encode("x").tolist())
    for _ in range(max_tokens):
        allowed = allowed_tokens(matcher, tokenizer.vocab_size + 40)
        ends = [t for t in allowed if t in tokenizer.end_ids and random.random() < 0.3]
        likely = ends or [t for t in allowed if tokenizer.decode([t]).strip()]
        token = int(random.choice(likely or allowed))
        if token in tokenizer.end_ids:
            return text + answer.flush().text, True
        matcher.accept([token])
        text += answer.push([token]).text
        if matcher.is_finished:
            return text + answer.flush().text, True
    return text, False


@pytest.mark.parametrize("kind", KINDS)
def test_random_logits_give_json_of_the_schema(compilers, kind):
    tokenizer, compiler = compilers[kind]
    num_ended = 0
    for seed in range(8):
        text, ended = random_answer(tokenizer, compiler.matcher(json_schema(SCHEMA)), seed)
        num_ended += ended
        if ended:
            found = json.loads(text)
            assert sorted(found) == ["kind", "name", "sizes"]
            assert found["kind"] in ("the text", "日本")
            assert len(found["name"]) <= 5
            assert all(isinstance(size, int) for size in found["sizes"])
    assert num_ended >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_likes_white_space_best_writes_json_nevertheless(compilers, kind):
    tokenizer, compiler = compilers[kind]
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "sizes": {"const": [1, 2]}}}
    matcher, tokens = compiler.matcher(json_schema(schema)), []
    while not matcher.is_finished and len(tokens) < 100:
        allowed = [
            t for t in allowed_tokens(matcher, tokenizer.vocab_size) if t not in tokenizer.end_ids
        ]
        if not allowed:
            break
        tokens.append(
            min(allowed, key=lambda token: (tokenizer.token_bytes(token) or b"x").strip(b" \n\t\r"))
        )
        matcher.accept(tokens[-1:])
    assert json.loads(tokenizer.decode(tokens))["sizes"] == [1, 2]


@pytest.mark.parametrize(
    ("style", "text", "is_match"),
    [
        ({}, '{ "a": [ true ] }', True),
        ({}, '{"a":[true]}', True),
        ({}, '{  "a":[true]}', False),
        ({"whitespace_flexible": True}, '{\n\n  "a":[true]}', True),
        ({"whitespace_pattern": "\n?"}, '{\n"a":[true]}', True),
        ({"item_separator": ";"}, '{ "a":[true;true]}', True),
    ],
)
def test_a_schema_may_say_what_white_space_there_is(compilers, style, text, is_match):
    """Otherwise there is one space or none between two parts."""
    inner = {"type": "array", "items": {"const": True}}
    schema = {"type": "object", "properties": {"a": inner}, "x-guidance": style}
    matcher = compilers["bytes"][1].matcher(json_schema(schema))
    assert (matcher.count_valid(list(text.encode())) == len(text)) == is_match


@pytest.mark.parametrize("kind", KINDS)
def test_random_logits_match_a_pattern(compilers, kind):
    tokenizer, compiler = compilers[kind]
    pattern = r"(the|text|é日){2,4}-[a-f0-9]{3}(, of words)?"
    for seed in range(10):
        text, ended = random_answer(tokenizer, compiler.matcher(regex(pattern)), seed)
        assert ended
        assert re.fullmatch(pattern, text)


@pytest.mark.parametrize("kind", KINDS)
def test_random_logits_write_what_a_lark_grammar_derives(compilers, kind):
    tokenizer, compiler = compilers[kind]
    num_ended = 0
    for seed in range(10):
        text, ended = random_answer(tokenizer, compiler.matcher(lark(SUM)), seed, 100)
        num_ended += ended
        if ended:
            assert re.fullmatch(r"[0-9+()]+", text)
            assert isinstance(eval(re.sub(r"\b0+(\d)", r"\1", text)), int)
    assert num_ended >= 3


def test_a_text_ends_where_it_matches_and_nowhere_else(compilers):
    tokenizer, compiler = compilers["bytes"]
    matcher = compiler.matcher(regex("ab?"))
    end, a, b = tokenizer.eos_id, ord("a"), ord("b")
    assert allowed_tokens(matcher, 264).tolist() == [a]
    matcher.accept([a])
    assert (matcher.is_match, matcher.is_finished) == (True, False)
    assert allowed_tokens(matcher, 264).tolist() == [b, end]
    matcher.accept([b])
    assert (matcher.is_match, matcher.is_finished) == (True, True)
    matcher.roll_back(2)
    assert allowed_tokens(matcher, 264).tolist() == [a]
    assert matcher.count_valid([a, b, b]) == 2


def test_matchers_of_one_grammar_are_apart(compilers):
    _, compiler = compilers["bytes"]
    first, second = compiler.matcher(regex("ab")), compiler.matcher(regex("ab"))
    first.accept(list(b"ab"))
    assert first.is_finished
    assert allowed_tokens(second, 264).tolist() == [ord("a")]


def test_a_grammar_is_compiled_once_and_beside_others(compilers, monkeypatch):
    compiler = GrammarCompiler(compilers["bytes"][0])
    is_asked, go_on, asked = threading.Event(), threading.Event(), []

    def compile_slowly(grammar):
        asked.append(grammar)
        is_asked.set()
        assert grammar != regex("slow") or go_on.wait(60)
        return compiled(grammar)

    compiled = compiler._compile
    monkeypatch.setattr(compiler, "_compile", compile_slowly)
    with ThreadPoolExecutor() as pool:
        slow = [pool.submit(compiler.matcher, regex("slow")) for _ in range(2)]
        assert is_asked.wait(60)
        assert not compiler.matcher(regex("ab")).is_match
        go_on.set()
        assert [one.result(60).is_match for one in slow] == [False, False]
    assert asked == [regex("slow"), regex("ab")]


def test_a_wrong_grammar_is_an_error_each_time_and_only_the_last_ones_are_kept(compilers):
    compiler = GrammarCompiler(compilers["bytes"][0])
    for _ in range(2):
        with pytest.raises(RequestError, match="no regular expression"):
            compiler.matcher(regex("("))
    for number in range(KEPT_GRAMMARS + 5):
        compiler.matcher(regex(str(number)))
    assert list(compiler._found) == [regex(str(number)) for number in range(5, KEPT_GRAMMARS + 5)]


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (regex("[ab"), "no regular expression that can be followed: .*unclosed character class"),
        (lark("start: foo"), "no Lark grammar that can be followed: .*unknown name"),
        (json_schema({"type": "strange"}), "no JSON schema that can be followed: .*strange"),
        (json_schema('{"type":'), "the JSON schema is not valid JSON"),
    ],
    ids=str,
)
def test_a_grammar_that_is_wrong_is_refused(compilers, grammar, text):
    with pytest.raises(RequestError, match=f"(?s){text}") as caught:
        compilers["bytes"][1].matcher(grammar)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("num_required", "num_optional", "text"),
    [(5000, 0, "has 5000 properties"), (0, 500, "has 500 properties in one object that are not")],
)
def test_a_schema_that_takes_too_long_is_refused_before(
    compilers, num_required, num_optional, text
):
    properties = {f"field_{n}": {"type": "boolean"} for n in range(num_required + num_optional)}
    schema = {"properties": properties, "required": list(properties)[:num_required]}
    with pytest.raises(RequestError, match=text):
        compilers["bytes"][1].matcher(json_schema({"items": {"anyOf": [{}, schema]}}))


def test_as_many_properties_may_be_left_out_as_are_accepted(compilers):
    properties = {f"field_{n}": {"const": 1} for n in range(MAX_OPTIONAL)}
    schema = {"type": "object", "properties": properties}
    matcher = compilers["bytes"][1].matcher(json_schema(schema))
    text = f'{{"field_3":1,"field_{MAX_OPTIONAL - 1}":1}}'
    for byte in text.encode():
        assert byte in allowed_tokens(matcher, 264)
        matcher.accept([byte])
    assert matcher.is_match


def test_a_token_that_cannot_follow_is_an_error(compilers):
    with pytest.raises(RequestError, match=r"cannot continue with the tokens \[98\]"):
        compilers["bytes"][1].matcher(regex("a")).accept([98])


def test_tokenizers_whose_tokens_are_no_known_bytes_are_refused(tmp_path):
    path = tmp_path / "words.json"
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0, "<end>": 1}, unk_token="a"))
    words.save(str(path))
    tokenizer = HuggingFaceTokenizer.Config(path=str(path), eos_token="<end>").build()
    with pytest.raises(RequestError, match=r"its tokenizer\.json does not say it"):
        GrammarCompiler(tokenizer).matcher(regex("a"))
    tokenizer.__class__ = type("Whistles", (tokenizer.__class__.__base__,), {})
    with pytest.raises(RequestError, match="it is a Whistles"):
        GrammarCompiler(tokenizer).matcher(regex("a"))


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (lark('start: "<think>" /[a-z]*/ "</think>"'), "<think>ab</think>"),
        (lark("start: <think> /[a-z]*/ </think>"), "<think>ab</think>"),
        (lark('start: "a" <|end|> "  b" // <think>'), "a<|end|>  b"),
        (regex("<think>[a-z]+"), "<think>ab"),
        (json_schema({"const": "<think>  "}), '"<think>  "'),
        (json_schema({"const": "<|end|>"}), '"<|end|>"'),
    ],
    ids=str,
)
def test_texts_of_a_grammar_may_be_added_tokens_and_tokens_may_be_named(tmp_path, grammar, text):
    """An added token that is not special is text; what is written like a special token is too."""
    added = [tokenizers.AddedToken(text, special=False) for text in ("<think>", "</think>", "  ")]
    tokenizer = chat_tokenizer(write_chat_tokenizer(tmp_path, added=added))
    tokens = tokenizer.encode(text).tolist()
    if grammar.kind == "lark":
        tokens = tokenizer.encode_placed(text).tokens.tolist()
    matcher = GrammarCompiler(tokenizer).matcher(grammar)
    matcher.accept(tokens)
    assert matcher.is_match


def test_the_extra_is_named_where_it_is_missing(compilers, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(RequestError, match="llguidance, which is not installed") as caught:
        compilers["bytes"][1].matcher(regex("never seen before"))
    assert 'pip install "axcore[guided]"' in str(caught.value)
