"""Prompts of a file: what a line is to rollouts, and what becomes of lines that are not prompts."""

import json

import numpy as np
import pytest

from axcore.batch_inference import PromptFile
from axcore.config import evolve
from axcore.data import LengthFilter
from axcore.errors import DataError
from axcore.rollouts import PromptFiles
from axcore.rollouts.experiments import grpo_reverse

GOOD = {"prompt": "ab=", "answer": "ba"}
CHAT = {"messages": [{"role": "user", "content": "ab"}], "answer": "ba"}


@pytest.fixture
def loader(tmp_path):
    """Returns a function from lines, objects or texts, to the loader of a file that has them."""

    def build(*lines, **changes):
        path = tmp_path / "prompts.jsonl"
        texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
        path.write_text("".join(f"{one}\n" for one in texts), encoding="utf-8")
        prompts = PromptFiles.Config(path=str(path), **changes)
        return evolve(grpo_reverse().data, prompts=prompts, validation_fraction=0.0).build()

    return build


def prompts_of(data):
    return data._prompts[0]


def test_rollouts_and_batches_give_a_line_the_same_tokens(loader):
    data = loader(GOOD, {"prompt": "<|end|>"}, {"prompt_tokens": [97, 98]})
    file = PromptFile(data.source.files()[0].path, data.tokenizer, max_length=99)
    found = prompts_of(data)
    assert [one.tokens for one in found] == [one.tokens for one in file]
    assert [one.text for one in found] == ["ab=", "<|end|>", "ab"]
    assert found[0].document.fields == {"answer": "ba"}


def test_rewards_read_a_conversation_as_its_template_writes_it(loader):
    data = evolve(loader(CHAT).config, seq_len=40).build()
    (found,) = prompts_of(data)
    assert found.text.endswith("<user>\nab\n<assistant>\n")
    np.testing.assert_array_equal(found.tokens, data.tokenizer.encode_chat(CHAT["messages"]))


BAD = [
    ("{", "line 2 is not JSON"),
    ("[1]", "line 2 contains a list, not an object"),
    ({"prompt": 3}, "line 2: field 'prompt' holds 3, not a string"),
    ({"question": "2+2"}, "line 2: expected one of the fields 'prompt', 'messages'"),
    ({**GOOD, **CHAT}, "line 2: expected one of the fields .* it has 'prompt', 'messages'"),
    ({"messages": []}, "line 2: Field 'messages' contains"),
    ({"prompt_tokens": [-1]}, "line 2: field 'prompt_tokens' holds -1"),
]


@pytest.mark.parametrize(("line", "error"), BAD)
def test_a_line_that_is_not_a_prompt_is_an_error_that_names_it(loader, line, error):
    with pytest.raises(DataError, match=error) as found:
        loader(GOOD, line).summary()
    assert "on_bad" in found.value.hint


@pytest.mark.parametrize(("line", "error"), BAD)
def test_such_lines_are_left_out_and_counted_where_they_may_be(loader, line, error):
    data = loader(GOOD, line, GOOD, on_bad="skip", max_bad_fraction=0.4)
    with pytest.warns(UserWarning, match=rf"1 of 3 lines left out.*{error}"):
        assert [one.text for one in prompts_of(data)] == ["ab=", "ab="]
    strict = evolve(data.config.prompts, max_bad_fraction=0.3)
    with pytest.raises(DataError, match=r"1 of 3 lines are bad, and max_bad_fraction is 0\.3"):
        evolve(data.config, prompts=strict).build().summary()


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_a_line_is_an_error(loader, text):
    with pytest.raises(DataError, match="the file has no prompt"):
        loader(text).summary()


def test_prompts_that_are_too_long_are_left_out_and_counted(loader, capsys):
    data = loader(GOOD, {"prompt": "a" * 50})
    assert "1 prompts" in data.summary()
    assert "1 prompts of" in capsys.readouterr().err
    with pytest.raises(DataError, match="no prompt to train on: 1 are too long"):
        loader({"prompt": "a" * 50}).summary()


def test_transforms_choose_prompts_as_they_choose_documents(loader, capsys):
    data = loader(GOOD, {"prompt": "abcd="}, transforms=(LengthFilter.Config(max_length=4),))
    assert [one.text for one in prompts_of(data)] == ["ab="]
    assert "1 longer" in capsys.readouterr().err
