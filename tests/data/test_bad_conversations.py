"""Bad conversations and judgements: each is named, counted or cut with a word, and none is lost."""

import json

import numpy as np
import pytest
from chat_families import FAMILIES
from chat_tokenizer import write_chat_tokenizer
from stores import built

from axcore.config import evolve
from axcore.data import (
    ByteTokenizer,
    ChatFiles,
    ChatPairs,
    Data,
    LabelledChats,
    PreferenceData,
    tokenizer_in,
)
from axcore.errors import DataError

TALK = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
ALTERNATING = """{%- for message in messages %}
    {%- if message.role != ('user' if loop.index0 % 2 == 0 else 'assistant') %}
        {{- raise_exception('roles must alternate') }}
    {%- endif %}
    {{- '<|turn|>' + message.role }}:{{ message.content }}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|turn|>assistant:{% endif %}"""


def written(path, *records):
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return str(path)


def data_of(tmp_path, *talks, template=None, **source):
    """Returns data of conversations, by bytes or by a tokenizer with a template."""
    tokenizer = ByteTokenizer.Config()
    if template is not None:
        tokenizer = tokenizer_in(write_chat_tokenizer(tmp_path / "model", template))
    path = written(tmp_path / "chats.jsonl", *({"messages": talk} for talk in talks))
    return Data.Config(
        source=ChatFiles.Config(path=path, **source),
        tokenizer=tokenizer,
        seq_len=64,
        batch_size=1,
        packing="best_fit",
        validation_fraction=0.0,
    )


@pytest.mark.parametrize(
    ("template", "talk", "said"),
    [
        (
            "{{ messages[7].content.text }}",
            TALK,
            r"does not take this conversation: .*has no element 7",
        ),
        ("{{ 1 / 0 }}", TALK, r"does not take this conversation: division by zero"),
        (ALTERNATING, TALK[::-1], r"does not take this conversation: roles must alternate"),
        (ALTERNATING, [TALK[0], *TALK], r"does not take this conversation: roles must alternate"),
    ],
)
def test_a_template_that_fails_names_the_line_and_the_roles(tmp_path, template, talk, said):
    with pytest.raises(DataError, match=rf"chats.jsonl:1: .*{said}") as e:
        next(data_of(tmp_path, talk, template=template).build().train())
    assert "The roles are ['" in e.value.hint


def test_conversations_without_an_answer_are_quarantined_with_place_and_reason(tmp_path):
    cfg = data_of(tmp_path, TALK, TALK[:1], TALK, on_bad="skip")
    stored = built(cfg, tmp_path / "store")
    assert (stored.manifest.records, stored.manifest.bad_records) == (3, 1)
    (bad,) = map(json.loads, (tmp_path / "store" / "quarantine.jsonl").read_text().splitlines())
    assert bad["file"] == "chats.jsonl"
    assert "no message of 'assistant'" in bad["reason"]


def test_where_every_conversation_is_bad_training_ends_with_an_error(tmp_path):
    cfg = data_of(tmp_path, TALK[:1], TALK[:1], on_bad="skip")
    nothing = pytest.raises(DataError, match=r"no text to train on: no document of conversations")
    with pytest.warns(UserWarning, match=r"2 of 2 lines left out.*no message of 'assist"), nothing:
        next(cfg.build().train())
    strict = evolve(cfg, source=evolve(cfg.source, max_bad_fraction=0.4))
    with pytest.raises(DataError, match=r"no message of 'assistant'"):
        next(strict.build().train())


def test_an_answer_beyond_the_length_is_cut_and_that_is_said(tmp_path, capfd):
    long = [TALK[0], {"role": "assistant", "content": "x" * 100}]
    data = data_of(tmp_path, TALK, long).build()
    data.summary()
    said = capfd.readouterr().err
    assert "data: 1 of 2 documents" in said
    assert "longer than data.seq_len=64 and are cut" in said
    data_of(tmp_path, TALK).build().summary()
    assert not capfd.readouterr().err


def pairs(tmp_path, *records, reads=None):
    path = written(tmp_path / "pairs.jsonl", *records)
    return PreferenceData.Config(
        source=ChatFiles.Config(path=path, reads=reads or ChatPairs.Config()),
        seq_len=32,
        batch_size=1,
        validation_fraction=0.0,
    )


@pytest.mark.parametrize("with_prompt", [True, False])
def test_a_preference_between_equal_answers_is_refused(tmp_path, with_prompt):
    talk = [] if with_prompt else TALK[:1]
    answer = [*talk, TALK[1]]
    record = {"chosen": answer, "rejected": answer} | ({"prompt": "2+2?"} if with_prompt else {})
    good = {"prompt": "a", "chosen": "b", "rejected": "c"}
    with pytest.raises(DataError, match=r"pairs.jsonl:2: .* are the same answer: .*'content': '4'"):
        next(pairs(tmp_path, good, record).build().train())


def test_a_pair_longer_than_a_row_loses_its_end_and_that_is_said(tmp_path, capfd):
    cut = {"prompt": "a", "chosen": "b" * 40, "rejected": "c"}
    lost = {"prompt": "a" * 40, "chosen": "b", "rejected": "c"}
    batch = next(pairs(tmp_path, cut, lost).build().train())
    said = capfd.readouterr().err
    assert "1 rows lost the end of an answer, and 1 of which no answer fits" in said
    prompt = len(b"<user>\na\n<assistant>\n")
    assert batch["loss_weights"][0].sum(axis=-1).tolist() == [32 - prompt, 2]


def test_a_judgement_that_is_none_is_refused(tmp_path):
    record = {"prompt": "a", "completion": "b", "label": "yes"}
    with pytest.raises(DataError, match=r"Field 'label' contains 'yes', not true or false"):
        next(pairs(tmp_path, record, reads=LabelledChats.Config()).build().train())


def test_tools_of_both_layouts_write_the_same_tokens(tmp_path):
    call = {"name": "add", "arguments": {"a": 1}}
    tools = [{"type": "function", "function": {"name": "add"}}]
    asked = {"type": "function", "function": call}
    openai = {
        "messages": [
            TALK[0],
            {"role": "assistant", "content": "", "tool_calls": [asked]},
            {"role": "tool", "content": "4"},
            TALK[1],
        ],
        "tools": tools,
    }
    share_gpt = {
        "conversations": [
            {"from": "human", "value": "2+2?"},
            {"from": "function_call", "value": json.dumps(call)},
            {"from": "observation", "value": "4"},
            {"from": "gpt", "value": "4"},
        ],
        "tools": json.dumps(tools),
    }
    path = written(tmp_path / "chats.jsonl", openai, share_gpt)
    tokenizer = ByteTokenizer.Config().build()
    ours, theirs = ChatFiles.Config(path=path).build().transformed(tokenizer)
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    np.testing.assert_array_equal(ours.loss_weights, theirs.loss_weights)
    counted = tokenizer.decode(ours.tokens[ours.loss_weights > 0])
    assert counted == f"<calls>[{json.dumps(asked)}]4"


def test_a_labelled_answer_that_would_be_several_texts_is_refused(tmp_path):
    folder = write_chat_tokenizer(tmp_path / "model", FAMILIES["qwen3"]["template"])
    tokenizer = tokenizer_in(folder)
    ends = [[TALK[1], *TALK[:1], {**TALK[1], "content": text}] for text in "ab"]
    record = {"prompt": "2+2?", "chosen": ends[0], "rejected": ends[1]}
    with pytest.raises(DataError, match=r"pairs.jsonl:1: .* behind the prompt as 2 texts"):
        next(evolve(pairs(tmp_path, record), tokenizer=tokenizer).build().train())
