"""Calls of tools are found in an answer however it is cut into pieces."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from axcore.serving.tools import MarkedCalls, PlainText, ToolCall, WholeCall, tool_call_reader

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
LLAMA = '{"name": "add", "parameters": {"a": 1}}'


def read(reader, pieces):
    """Returns text and calls, those of text that follow one another as one."""
    found = [one for piece in pieces for one in reader.read(piece)] + reader.finish()
    merged = []
    for one in found:
        if merged and isinstance(one, str) and isinstance(merged[-1], str):
            merged[-1] += one
        else:
            merged.append(one if isinstance(one, str) else (one.name, json.loads(one.arguments)))
    return merged


@given(st.lists(st.integers(0, 160), max_size=12))
def test_calls_do_not_depend_on_how_the_answer_is_cut(cuts):
    text = f"Let me see. <tool{CALL}{CALL} 1 < 2"
    places = [0, *sorted(cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    call = ("add", {"a": 1})
    assert read(MarkedCalls(), pieces) == ["Let me see. <tool", call, call, " 1 < 2"]


def test_text_is_passed_on_as_soon_as_no_call_can_begin_in_it():
    reader = MarkedCalls()
    assert reader.read("ab<tool") == ["ab"]
    assert reader.read("box>") == ["<toolbox>"]


@pytest.mark.parametrize("text", ["<tool_call>no JSON</tool_call>", "<tool_call>[1]</tool_call>"])
def test_what_is_no_call_stays_text(text):
    assert read(MarkedCalls(), [text]) == [text]


def test_a_call_that_ends_with_the_answer_is_one():
    assert read(MarkedCalls(), [CALL.removesuffix("</tool_call>")]) == [("add", {"a": 1})]


def test_an_answer_that_is_a_call_as_a_whole_is_one():
    assert read(WholeCall(), list(LLAMA)) == [("add", {"a": 1})]
    assert read(WholeCall(), [f"{LLAMA}; {LLAMA}"]) == [("add", {"a": 1})] * 2
    for text in ("Not a call.", '{"no": "name"}', f"{LLAMA} and more"):
        assert read(WholeCall(), list(text)) == [text]


def test_the_reader_is_that_of_the_template():
    assert isinstance(tool_call_reader("... <tool_call> ..."), MarkedCalls)
    assert isinstance(tool_call_reader('... "parameters" ... ipython ...'), WholeCall)
    assert isinstance(tool_call_reader("{{ messages }}"), PlainText)
    assert isinstance(tool_call_reader(None), PlainText)


def test_each_call_has_an_id_of_its_own():
    assert ToolCall("a", "{}").id != ToolCall("a", "{}").id
