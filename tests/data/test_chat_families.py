"""Each family's chat template: the tokens that the loss counts, against a truth written by hand."""

import pytest
from chat_families import FAMILIES, RECORDS, shown, tokenizer_of

from axcore.data.chat.chat_tokens import tokenize_chat
from axcore.data.chat.conversation import read_conversation

CASES = [
    (family, case)
    for family, said in FAMILIES.items()
    for case in said
    if case.split("_")[0] in RECORDS
]


@pytest.mark.parametrize(("family", "case"), CASES)
def test_what_counts_is_what_the_model_has_to_write(family, case, tmp_path):
    said = FAMILIES[family]
    tokenizer = tokenizer_of(tmp_path, said["template"], special=said["special"], ends=said["ends"])
    name, _, flag = case.partition("_")
    values = {flag.removesuffix("_false"): False} if flag else {}
    made = tokenize_chat(read_conversation(RECORDS[name]), tokenizer, values=values)
    assert [shown(one, said["special"]) for one in made] == said[case]


def test_there_are_enough_families():
    assert len(FAMILIES) >= 30


@pytest.mark.parametrize(("family", "case"), [one for one in CASES if one[1] in RECORDS])
def test_an_answer_is_behind_the_very_tokens_that_a_server_asks_with(family, case, tmp_path):
    said = FAMILIES[family]
    tokenizer = tokenizer_of(tmp_path, said["template"], special=said["special"], ends=said["ends"])
    chat = read_conversation(RECORDS[case])
    places = [n for n, one in enumerate(chat.messages) if one["role"] == "assistant"]
    asked = [
        tokenizer.encode_chat(chat.messages[:n], tools=chat.tools and list(chat.tools)).tolist()
        for n in places
    ]
    for sequence in tokenize_chat(chat, tokenizer):
        begins = [
            n for n in range(1, len(sequence.tokens)) if sequence.counts[n] > sequence.counts[n - 1]
        ]
        for begin in begins:
            assert sequence.tokens[:begin].tolist() == asked.pop(0)
    assert not asked
