"""Conversations in both layouts, and which of their tokens the loss counts."""

import json

import numpy as np
import pytest
from chat_tokenizer import MARKED, TEMPLATE, write_chat_tokenizer

from axcore.data import (
    ByteTokenizer,
    ChatFiles,
    ChatMessages,
    ChatTemplate,
    Data,
    tokenizer_in,
)
from axcore.data.chat.conversation import read_conversation
from axcore.errors import DataError

TALK = [
    {"role": "user", "content": "Grüße 😀"},
    {"role": "assistant", "content": "  Hallo 😀😀"},
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": "4"},
]
CALL = {"name": "add", "arguments": {"a": 1}}


def counted(path, tokenizer, **settings):
    """Returns tokens and mask of each conversation of a file."""
    source = ChatFiles.Config(path=str(path), **settings).build()
    return [(one.tokens, one.loss_weights > 0) for one in source.transformed(tokenizer)]


def written(path, *records):
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def test_marks_and_spans_found_by_prefixes_count_the_same_tokens(tmp_path):
    path = written(tmp_path / "chats.jsonl", {"messages": TALK}, {"messages": TALK[:2]})
    found = []
    for number, template in enumerate((TEMPLATE, MARKED)):
        tokenizer = tokenizer_in(write_chat_tokenizer(tmp_path / str(number), template)).build()
        assert tokenizer.chat_template.marks_answers == bool(number)
        found.append(counted(path, tokenizer))
        tokens, mask = found[-1][0]
        assert tokenizer.decode(tokens[mask]) == "  Hallo 😀😀4"
    for by_prefix, by_marks in zip(*found, strict=True):
        np.testing.assert_array_equal(by_prefix, by_marks)


@pytest.mark.parametrize("template", [TEMPLATE, MARKED])
def test_where_a_template_changes_earlier_turns_each_answer_has_a_text_of_its_own(
    tmp_path, template
):
    changing = template.replace("'<|turn|>'", "messages | length ~ '<|turn|>'")
    changing = changing.replace("%}<|turn|>", "%}{{ messages | length + 1 }}<|turn|>")
    tokenizer = tokenizer_in(write_chat_tokenizer(tmp_path / "model", changing)).build()
    path = written(tmp_path / "chats.jsonl", {"messages": TALK})
    (first, mask), (second, other) = counted(path, tokenizer)
    assert [tokenizer.decode(first[mask]), tokenizer.decode(second[other])] == ["  Hallo 😀😀", "4"]


@pytest.mark.parametrize("template", [TEMPLATE, MARKED])
def test_a_message_of_weight_zero_does_not_count(tmp_path, template):
    tokenizer = tokenizer_in(write_chat_tokenizer(tmp_path / "model", template)).build()
    first = [TALK[0], {**TALK[1], "weight": 0}, *TALK[2:]]
    ((tokens, mask),) = counted(written(tmp_path / "a.jsonl", {"messages": first}), tokenizer)
    assert tokenizer.decode(tokens[mask]) == "4"


def test_several_marks_of_an_answer_weigh_what_it_does(tmp_path):
    twice = MARKED.replace("<|end|>{% endg", "{% endgeneration %}{% generation %}<|end|>{% endg")
    tokenizer = tokenizer_in(write_chat_tokenizer(tmp_path / "model", twice)).build()
    first = [TALK[0], {**TALK[1], "weight": 0}, *TALK[2:]]
    ((tokens, mask),) = counted(written(tmp_path / "a.jsonl", {"messages": first}), tokenizer)
    assert tokens[mask].tolist() == tokenizer.encode_placed("4<|end|>").tokens.tolist()


def test_marks_without_a_loop_over_messages_are_one_an_answer_or_refused(tmp_path):
    by_place = (
        "{% for n in range(messages | length) %}{% set message = messages[n] %}"
        + MARKED.split("%}", 1)[1]
    )
    path = written(tmp_path / "a.jsonl", {"messages": TALK})
    tokenizer = tokenizer_in(write_chat_tokenizer(tmp_path / "one", by_place)).build()
    ((tokens, mask),) = counted(path, tokenizer)
    assert tokenizer.decode(tokens[mask]) == "  Hallo 😀😀4"
    twice = by_place.replace("<|end|>{% endg", "{% endgeneration %}{% generation %}<|end|>{% endg")
    tokenizer = tokenizer_in(write_chat_tokenizer(tmp_path / "two", twice)).build()
    with pytest.raises(DataError, match=r"a.jsonl:1: .* marks 4 spans of 2 answers"):
        counted(path, tokenizer)


def test_both_layouts_are_one_conversation():
    openai = {
        "messages": [
            {"role": "system", "content": "Add."},
            {"role": "user", "content": [{"type": "text", "text": "1"}, *[]]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": {**CALL, "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "content": "2"},
            {"role": "assistant", "content": "2", "name": None},
        ],
        "tools": [{"name": "add"}],
    }
    share_gpt = {
        "system": "Add.",
        "conversations": [
            {"from": "human", "value": "1"},
            {"from": "function_call", "value": json.dumps(CALL)},
            {"from": "observation", "value": "2"},
            {"from": "gpt", "value": "2"},
        ],
        "tools": '[{"name": "add"}]',
    }
    assert read_conversation(openai) == read_conversation(share_gpt)
    calls = read_conversation(openai).messages[2]["tool_calls"]
    assert calls == [{"type": "function", "function": CALL}]


def test_tools_reach_the_template(tmp_path):
    tokenizer = ByteTokenizer.Config().build()
    path = written(tmp_path / "a.jsonl", {"messages": TALK, "tools": [{"name": "<ß>"}]})
    ((tokens, _),) = counted(path, tokenizer)
    assert tokenizer.decode(tokens).startswith('<tools>\n[{"name": "<ß>"}]\n<user>\n')


def test_tools_that_a_template_does_not_read_are_named(tmp_path):
    tokenizer = tokenizer_in(write_chat_tokenizer(tmp_path / "model", TEMPLATE)).build()
    path = written(tmp_path / "a.jsonl", {"messages": TALK, "tools": [{"name": "add"}]})
    with pytest.warns(
        UserWarning, match=r"tools are left out: the chat template .* does not write them"
    ):
        counted(path, tokenizer)


def test_bytes_have_a_template_whose_prompt_is_plain_text(tmp_path):
    tokenizer = ByteTokenizer.Config().build()
    ((tokens, mask),) = counted(written(tmp_path / "a.jsonl", {"messages": TALK}), tokenizer)
    assert tokens[mask].tolist() == [*"  Hallo 😀😀".encode(), 257, *b"4", 257]
    prompt = tokenizer.encode_prompt("<user>\nGrüße 😀\n<assistant>\n").tolist()
    assert tokens[: len(prompt)].tolist() == prompt == tokenizer.encode_chat(TALK[:1]).tolist()


def test_text_that_no_character_may_be_in_is_refused():
    template = ChatTemplate("{{ messages[0].content }}", {}, where="here")
    with pytest.raises(DataError, match=r"contains U\+FDD0 or U\+FDD1"):
        template.render([{"role": "user", "content": "\ufdd0"}])


def test_a_folder_of_conversations_is_read_by_name(tmp_path):
    for name in ("b", "a"):
        written(tmp_path / f"{name}.jsonl", {"messages": [*TALK[:1], {**TALK[1], "content": name}]})
    (tmp_path / "notes.txt").write_text("no conversation")
    tokenizer = ByteTokenizer.Config().build()
    texts = [tokenizer.decode(tokens[mask]) for tokens, mask in counted(tmp_path, tokenizer)]
    assert texts == ["a", "b"]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match=r"No file matches 'chats.jsonl'"):
        counted(tmp_path / "chats.jsonl", ByteTokenizer.Config().build())


def test_packed_conversations_share_rows_and_no_attention(tmp_path):
    short = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    path = written(tmp_path / "a.jsonl", *[{"messages": short}] * 8)
    data = Data.Config(
        source=ChatFiles.Config(path=str(path)),
        seq_len=64,
        batch_size=1,
        packing="best_fit",
        validation_fraction=0.0,
    )
    batch = next(data.build().train())
    segments, counts = np.unique(batch["segment_ids"], return_counts=True)
    assert segments.tolist() == [0, 1, 2]
    assert counts[1:].tolist() == [24, 24]
    assert batch["targets"][batch["loss_weights"] == 1].tolist() == [98, 257, 98, 257]
    assert batch["positions"][0, 24] == 0


def test_of_another_role_all_that_the_template_writes_counts(tmp_path):
    tokenizer = tokenizer_in(write_chat_tokenizer(tmp_path / "model", TEMPLATE)).build()
    path = written(tmp_path / "a.jsonl", {"messages": TALK})
    reads = ChatMessages.Config(role="user")
    ((tokens, mask),) = counted(path, tokenizer, reads=reads)
    wanted = "<|turn|>user:Grüße 😀<|end|><|turn|>user:2+2?<|end|>"
    assert tokens[mask].tolist() == tokenizer.encode_placed(wanted).tokens.tolist()


@pytest.mark.parametrize(("role", "fields"), [("tool", {}), (None, {"reasoning": "Hm."})])
def test_what_a_template_does_not_write_is_left_out_where_that_is_asked_for(tmp_path, role, fields):
    quiet = TEMPLATE.replace("{%- if message.role not in ('user', 'assistant') %}", "{%- if 0 %}")
    quiet = quiet.replace(
        "{{- '<|turn|>'", "{%- if message.role == 'tool' %}{% continue %}{% endif %}{{- '<|turn|>'"
    )
    tokenizer = tokenizer_in(write_chat_tokenizer(tmp_path / "model", quiet)).build()
    more = [] if role is None else [{"role": role, "content": "3"}]
    talk = [TALK[0], *more, {**TALK[3], **fields}]
    path = written(tmp_path / "a.jsonl", {"messages": talk})
    with pytest.raises(DataError, match="leaves out") as e:
        counted(path, tokenizer)
    assert "--set data.source.reads.leaves_out_unwritten=true" in e.value.hint
    with pytest.warns(UserWarning, match=r"Of conversations, .* are left out"):
        ((tokens, mask),) = counted(
            path, tokenizer, reads=ChatMessages.Config(leaves_out_unwritten=True)
        )
    assert tokenizer.decode(tokens[mask]) == "4"
