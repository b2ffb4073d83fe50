"""Text that comes in pieces is the text of the whole, and ends where a plain search ends it."""

import pytest
from chat_tokenizer import write_chat_tokenizer
from gguf_tokenizers import BYTE_LEVEL, byte_level, pieces
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from axcore.data import ByteTokenizer, HuggingFaceTokenizer
from axcore.errors import ConfigError
from axcore.inference.detokenizer import (
    MAX_PENDING,
    IncrementalDetokenizer,
    StopStrings,
    TextStream,
)

BYTES = ByteTokenizer.Config().build()
TEXT = "It's  the text: naïve café, 日本語 🙂🙂 e\u0301.\n\n  And 1234 words \u200d more, DONÉE."


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    chat = write_chat_tokenizer(folder / "chat") / "tokenizer.json"
    return {
        "bytes": BYTES,
        "one byte a token": HuggingFaceTokenizer.Config(
            path=str(chat), eos_token="<|end|>"
        ).build(),
        "byte-level": byte_level(folder / "byte.json", BYTE_LEVEL["gpt-2"][0]()),
        "pieces": pieces(folder / "pieces.model", byte_fallback=True),
    }


KINDS = ("bytes", "one byte a token", "byte-level", "pieces")


def pieces_of(tokenizer, tokens, prompt=()):
    stream = TextStream(tokenizer, prompt)
    return [*(stream.push([token]) for token in tokens), stream.flush()]


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_of_a_text_are_the_text_in_whole_characters(tokenizers, kind):
    tokenizer = tokenizers[kind]
    tokens = tokenizer.encode(TEXT).tolist()
    found = pieces_of(tokenizer, tokens)
    assert "".join(found) == tokenizer.decode(tokens) == TEXT
    assert not any("\ufffd" in piece for piece in found)
    assert sum(map(bool, found)) > len(TEXT) / 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [0, 1, 5, 14, 30])
def test_an_answer_continues_its_prompt(tokenizers, kind, cut):
    tokenizer = tokenizers[kind]
    tokens = tokenizer.encode(TEXT).tolist()
    prompt = tokenizer.decode(tokens[:cut]).rstrip("\ufffd")
    answer = "".join(pieces_of(tokenizer, tokens[cut:], tokens[:cut]))
    assert prompt + answer == TEXT


def test_a_word_after_the_prompt_keeps_the_space_in_front(tokenizers):
    tokenizer = tokenizers["pieces"]
    prompt, answer = tokenizer.encode("the").tolist(), tokenizer.encode("text").tolist()
    assert tokenizer.decode(answer) == "text"
    assert "".join(pieces_of(tokenizer, answer, prompt)) == " text"


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=200, deadline=None, phases=[Phase.generate])
def test_any_bytes_become_what_they_decode_to(data):
    some = st.integers(0, 258) | st.sampled_from([0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x99])
    tokens = data.draw(st.lists(st.sampled_from([0x80, 0xE2, 0x9F]), max_size=40))
    tokens = tokens + data.draw(st.lists(some))
    cuts = data.draw(st.lists(st.integers(0, len(tokens))).map(sorted))
    stream, found = TextStream(BYTES), ""
    for start, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        found += stream.push(tokens[start:end])
        assert BYTES.decode(tokens).startswith(found)
    assert found + stream.flush() == BYTES.decode(tokens)


class Counting:
    """Decodes as another tokenizer does, and counts the tokens that it decodes."""

    def __init__(self, tokenizer):
        self.tokenizer, self.count = tokenizer, 0

    def decode(self, tokens):
        self.count += len(tokens)
        return self.tokenizer.decode(tokens)


@pytest.mark.parametrize("token", [ord("a"), 0x80, 0xF0, BYTES.eos_id])
def test_each_token_is_decoded_a_fixed_number_of_times(token):
    counts = []
    for length in (500, 1000):
        counting = Counting(BYTES)
        pieces_of(counting, [token] * length)
        counts.append(counting.count)
    assert counts[1] < 2.1 * counts[0] < 2.1 * 500 * 3 * MAX_PENDING


def naive(text, stops):
    """Returns the text before the string that is complete first, by looking at each prefix."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


letters = st.text("ab.", max_size=30)


@pytest.mark.slow
@given(text=letters, stops=st.lists(st.text("ab.", min_size=1, max_size=6)), data=st.data())
@settings(max_examples=400, deadline=None)
def test_stop_strings_end_a_text_as_a_plain_search_does(text, stops, data):
    cuts = data.draw(st.lists(st.integers(0, len(text))).map(sorted))
    expected, is_stopped = naive(text, stops)
    stream, found = StopStrings(stops), ""
    for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += stream.push(text[start:end])
        assert expected.startswith(found)
        held = len(text[:end]) - len(found)
        assert stream.is_stopped or held < max(map(len, stops), default=1)
    assert found + stream.flush() == expected
    assert stream.is_stopped == is_stopped


def test_a_stop_string_across_tokens_ends_the_answer_at_its_last_token():
    tokens = list(b"The end.\n\nUser: more")
    answer = IncrementalDetokenizer(BYTES, stops=["\n\nUser:"])
    first, second = answer.push(tokens[:12]), answer.push(tokens[12:])
    assert (first.text, first.num_tokens, first.is_stopped) == ("The end.", 12, False)
    assert (second.text, second.num_tokens, second.is_stopped) == ("", 3, True)
    assert answer.flush() == ("", 0, True)


def test_what_looked_like_a_stop_string_comes_in_the_end():
    answer = IncrementalDetokenizer(BYTES, stops=["END"])
    assert answer.push(list(b"The EN")).text == "The "
    assert answer.flush() == ("EN", 0, False)


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ConfigError, match=r"a stop string is empty: \['a', ''\]"):
        StopStrings(["a", ""])


@pytest.mark.parametrize(
    ("prompt", "answer", "text"),
    [
        ("日".encode()[:2], b"a", "a"),
        ("日".encode()[:2], "日".encode()[2:] + b"a", "日a"),
        ("日".encode()[:1], "日".encode()[1:2], ""),
        (b"x\xff", b"y\xffz", "y\ufffdz"),
        ("a\ufffd".encode(), b"b", "b"),
    ],
)
def test_the_half_of_a_character_that_a_prompt_ends_with_is_no_part_of_the_answer(
    prompt, answer, text
):
    assert "".join(pieces_of(BYTES, list(answer), list(prompt))) == text
