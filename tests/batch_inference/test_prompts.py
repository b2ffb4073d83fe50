"""Prompts of a file: their tokens, and what is wrong with a line, by its number."""

import gzip
import json

import pytest
from chat_tokenizer import write_chat_tokenizer

from axcore.batch_inference import PromptFile
from axcore.config import evolve
from axcore.data import ByteTokenizer, tokenizer_in
from axcore.errors import DataError

TOKENIZER = ByteTokenizer.Config().build()
LONGEST = 16


@pytest.fixture
def read(tmp_path):
    """Returns a function from lines, objects or texts, to the prompts of a file that has them."""

    def write(*lines, tokenizer=TOKENIZER, **options):
        path = tmp_path / "prompts.jsonl"
        texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
        path.write_text("".join(f"{one}\n" for one in texts), encoding="utf-8")
        return PromptFile(path, tokenizer, max_length=LONGEST, **options)

    return write


def test_a_prompt_has_the_tokens_that_generate_gives_it(read):
    text, special, tokens = read(
        {"prompt": "To"}, {"prompt": "<|end|>"}, {"prompt_tokens": [1, 2], "id": "x"}
    )
    assert list(text.tokens) == TOKENIZER.encode_prompt("To").tolist()
    assert special.tokens[-1] == TOKENIZER.eos_id
    assert (tokens.tokens, tokens.index, tokens.fields["id"]) == ((1, 2), 2, "x")
    plain = read({"prompt": "<|end|>"}, parses_special=False)
    assert [*next(iter(plain)).tokens[-3:]] == [*b"d|>"]


def test_a_conversation_is_written_by_the_chat_template_up_to_the_answer(read, tmp_path):
    folder = write_chat_tokenizer(tmp_path / "chat")
    tokenizer = evolve(
        tokenizer_in(folder), chat_template_path=str(folder / "chat_template.jinja")
    ).build()
    messages = [{"role": "user", "content": "a"}]
    refused = [{"role": "system", "content": "a"}]
    path = read({"messages": messages}, {"messages": refused}).path
    prompt, wrong = PromptFile(path, tokenizer, max_length=99)
    assert list(prompt.tokens) == tokenizer.encode_chat(messages).tolist()
    assert "line 2: The chat template does not take this" in wrong.error.what


def test_gzip_empty_lines_and_a_missing_last_line_end_change_nothing(read, tmp_path):
    plain = read({"prompt": "a"}, "", {"prompt": "b"})
    packed = tmp_path / "packed.jsonl"
    packed.write_bytes(gzip.compress(plain.path.read_bytes().rstrip()))
    other = PromptFile(packed, TOKENIZER, max_length=LONGEST)
    assert [one.tokens for one in plain] == [one.tokens for one in other]
    assert [one.where.rpartition(":")[2] for one in plain] == ["1", "3"]
    assert plain.summary(1) == other.summary(1)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 contains a list, not an object"),
        ('{"prompt": "a", "prompt": "b"}', "the key 'prompt' is twice"),
        ({"promt": "a"}, "expected one of the fields 'prompt', 'messages' and 'prompt_tokens'"),
        ({}, "it has nothing"),
        ({"prompt": "a", "messages": []}, "it has 'prompt', 'messages'"),
        ({"prompt": 3}, "field 'prompt' holds 3, not a string"),
        ({"prompt": "x" * LONGEST}, f"the prompt has {LONGEST + 1} tokens; the model reads 16"),
        ({"prompt": "\ud800"}, "half of a surrogate pair"),
        ({"prompt": "a", "index": 3}, "field 'index' is one that answers have"),
        ({"prompt_tokens": []}, "the prompt_tokens is empty"),
        ({"prompt_tokens": [1, -1]}, "holds -1; tokens are whole numbers from 0 to"),
        ({"prompt_tokens": [True]}, "holds True; tokens are"),
        ({"prompt_tokens": [10**9]}, "holds 1000000000; tokens are"),
        ({"prompt_tokens": "ab"}, "holds 'ab', not a list"),
        ({"messages": []}, "not a list of messages"),
        ({"messages": [{"role": "me", "content": "a"}]}, "has the role 'me'; expected"),
    ],
)
def test_a_line_that_cannot_be_answered_says_why_and_where(read, line, said):
    good, bad = read({"prompt": "a"}, line)
    assert good.error is None
    assert said in bad.error.what
    assert "prompts.jsonl, line 2" in bad.error.what
    assert bad.where.endswith("prompts.jsonl:2")
    assert "--on-error skip" in bad.error.hint


def test_the_summary_counts_what_is_wrong_and_what_is_cut(read):
    found = read({"prompt": "a"}, "{", {"prompt": "a" * 12}, {"prompt": 1}).summary(6)
    assert (found.num_prompts, found.num_bad, found.num_shortened) == (4, 2, 1)
    assert "line 2 is not JSON" in found.first_error.what


def test_digests_tell_other_texts_and_other_tokens_of_one_text(read):
    first = read({"prompt": "<|end|>"}).summary(1)
    assert read({"prompt": "<|end|> "}).summary(1).text_digest != first.text_digest
    other = read({"prompt": "<|end|>"}, parses_special=False).summary(1)
    assert other.text_digest == first.text_digest
    assert other.token_digest != first.token_digest


def test_a_file_without_a_prompt_is_an_error(read, tmp_path):
    with pytest.raises(DataError, match=r"prompts.jsonl holds no prompt"):
        read("", " ").summary(1)
    with pytest.raises(DataError, match="no such file"):
        PromptFile.check_is_readable(tmp_path / "absent.jsonl")
