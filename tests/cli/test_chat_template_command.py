"""`axcore chat-template check`: proves a template drivable, or ends with what it changes."""

import json

import pytest
from chat_families import FAMILIES, tokenizer_of
from click.testing import CliRunner

from axcore.cli.main import group
from axcore.errors import DataError


@pytest.fixture
def folder_of(tmp_path):
    def made(family):
        said = FAMILIES[family]
        tokenizer_of(tmp_path, said["template"], special=said["special"], ends=said["ends"])
        return tmp_path

    return made


def check(*words):
    return CliRunner().invoke(group, ["chat-template", "check", *map(str, words)])


def test_one_that_only_appends_is_drivable(folder_of):
    done = check(folder_of("qwen2.5"))
    assert done.exit_code == 0
    assert "user turns             drivable" in done.output
    assert "tool turns             drivable" in done.output


def test_one_that_drops_thinking_is_named_but_not_for_turns_of_tools(folder_of):
    folder = folder_of("qwen3")
    done = check(folder)
    assert isinstance(done.exception, DataError)
    assert "it drops the thinking of earlier answers" in done.output
    assert check(folder / "chat_template.jinja", "--turns", "tool").exit_code == 0


def test_json_has_every_case(folder_of):
    found = json.loads(check(folder_of("llama-3"), "--json", "--turns", "user").output)
    assert [one["result"] for one in found["kinds"]] == ["drivable", "not taken"]
    assert len(found["kinds"][0]["cases"]) == 6


def test_a_template_without_a_tokenizer_says_how_to_name_one(tmp_path):
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    done = check(tmp_path / "own.jinja")
    assert isinstance(done.exception, DataError)
    assert "MODEL_FOLDER --chat-template" in done.exception.hint
