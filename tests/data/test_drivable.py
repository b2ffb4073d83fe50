"""Templates driven in tokens: what comes of it for each family, and that the tokens are those."""

import pytest
from chat_families import FAMILIES, RECORDS, tokenizer_of

from axcore.data.chat.chat_tokens import tokenize_chat
from axcore.data.chat.chat_turns import ChatTurns
from axcore.data.chat.conversation import read_conversation
from axcore.data.chat.drivable import check_drivable, try_turns
from axcore.errors import DataError

CHANGES = {
    "mistral-nemo": {"user turns": "what is before an answer"},  # the system message moves
    "gemma-4": {
        "user turns": "what is before an answer",
        "tool turns": "what is before an answer",
    },
    "qwen3": {"user turns": "drops the thinking"},
    "qwen3.5": {"user turns": "drops the thinking"},
    "falcon": {"user turns": "no token that ends an answer"},
    "command-r7b": {"tool turns": "depends on what is before them"},  # it numbers calls
    "hermes-3": {"tool turns": "what is before an answer"},  # a line end behind the last result
    "glm-4.7-flash": {"user turns": "drops the thinking", "tool turns": "asks for answers with"},
    "nemotron-3-nano": {"user turns": "drops the thinking"},
    "gpt-oss": {"user turns": "drops the thinking"},
    "deepseek-v3.2": {"user turns": "drops the thinking"},
    "kimi-k2": {"user turns": "drops the thinking"},
}
"""Families whose templates change what they wrote, and how. All others only append."""


def tokenizer_for(family, folder):
    said = FAMILIES[family]
    return tokenizer_of(folder, said["template"], special=said["special"], ends=said["ends"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_template_that_changes_what_it_wrote_is_named_with_what_it_changes(family, tmp_path):
    kinds = {one.describe(): one for one in try_turns(tokenizer_for(family, tmp_path))}
    changes = CHANGES.get(family, {})
    for name in ("user turns", "tool turns"):
        assert (kinds[name].result == "not drivable") == (name in changes), kinds[name].deciding
        assert changes.get(name, "") in kinds[name].deciding.problem


@pytest.mark.parametrize(
    ("family", "record"),
    [("llama-3", "talk"), ("llama-2", "system"), ("qwen2.5", "tools"), ("mistral-nemo", "tools")],
)
def test_request_answers_and_bridges_are_the_tokens_of_the_conversation(family, record, tmp_path):
    tokenizer, chat = tokenizer_for(family, tmp_path), read_conversation(RECORDS[record])
    (made,) = tokenize_chat(chat, tokenizer)
    turns = ChatTurns(tokenizer, tools=chat.tools or ())
    first, second = (n for n, one in enumerate(chat.messages) if one["role"] == "assistant")
    request = list(turns.request(chat.messages[:first]))
    bridge = list(turns.bridge(chat.messages[first + 1 : second]))
    wanted, counts = made.tokens.tolist(), made.counts
    assert wanted[: len(request)] == request
    begin = len(request) + int(counts[len(request) :].argmin())
    assert wanted[begin : begin + len(bridge)] == bridge
    assert not counts[begin : begin + len(bridge)].any()
    assert counts[begin + len(bridge)]


def test_a_run_is_refused_only_for_the_turns_that_it_has(tmp_path):
    tokenizer = tokenizer_for("qwen3", tmp_path)
    check_drivable(tokenizer, follow_ups=("tool",), has_tools=True)
    with pytest.raises(DataError) as caught:
        check_drivable(tokenizer, follow_ups=("user",))
    assert "in conversations with user turns: it drops the thinking" in str(caught.value)
    assert "I think of number 0" in str(caught.value)


def test_a_template_that_takes_no_tools_is_refused_for_tool_turns(tmp_path):
    with pytest.raises(DataError, match="does not write tools"):
        check_drivable(tokenizer_for("llama-2", tmp_path), follow_ups=("tool",), has_tools=True)
