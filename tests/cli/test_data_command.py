"""`axcore data`: builds stores, and says what is in them."""

import json

import pytest
from click.testing import CliRunner

from axcore.cli.main import group
from axcore.errors import DataError


@pytest.fixture
def store(tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    for i in range(20):
        (texts / f"{i:02}.txt").write_text("x" * 10 * i + "\x1b[31mred")
    ran = run("build", "tiny", str(tmp_path / "store"), f"--modify=text_files(folder={texts})")
    assert ran.exit_code == 0, ran.output
    assert "17 documents" in ran.output
    return tmp_path / "store"


def run(*arguments):
    return CliRunner().invoke(group, ["data", *arguments])


def test_show_says_what_made_a_store(store):
    shown = json.loads(run("show", str(store), "--json").output)
    assert shown["train"]["documents"] + shown["validation"]["documents"] == shown["records"] == 20
    assert shown["tokenizer"]["type"] == "axcore.data.tokenizers.tokenizer:ByteTokenizer.Config"
    text = run("show", str(store)).output
    assert f"documents {shown['train']['documents']}, tokens" in text


def test_stats_count_every_document(store):
    found = json.loads(run("stats", str(store), "--json").output)
    train = found["train"]
    assert train["shortest"] <= train["p10"] <= train["p50"] <= train["p99"] <= train["longest"]
    assert train["mean"] * train["documents"] == pytest.approx(train["tokens"])
    assert max(one["longest"] for one in found.values()) == 190 + len("\x1b[31mred") + 2
    assert run("stats", str(store)).output.splitlines()[0].split()[:2] == ["SPLIT", "DOCUMENTS"]


def test_sample_shows_text_that_is_safe_for_a_terminal(store):
    text = run("sample", str(store), "--documents=30").output
    assert text.count("-- train document") == 17
    assert "\\x1b[31mred" in text
    assert "\x1b" not in text


def test_verify_ends_with_an_error_where_a_shard_is_damaged(store):
    assert "2 shards are what was written" in run("verify", str(store)).output
    shard = store / "shards" / "000000.train.tokens"
    shard.write_bytes(b"\0\0" + shard.read_bytes()[2:])
    error = run("verify", str(store)).exception
    assert isinstance(error, DataError)
    assert "1 of 2 shards are not what was written: 000000.train" in error.what
