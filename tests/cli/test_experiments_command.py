"""`axcore experiments`: the list, and how large the models are."""

import json

import pytest

from axcore.cli.main import main


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["experiments", *arguments])
    assert ended.value.code == 0


def test_sizes_are_counted_where_they_are_asked_for(capsys):
    run("--sizes", "--json")
    sizes = {row["name"]: row["parameters"] for row in json.loads(capsys.readouterr().out)}
    assert sizes["llama2-70b"] == 68_976_648_192
    assert sizes["mixtral-8x7b"] == 46_702_792_704
    run("--json")
    assert not any("parameters" in row for row in json.loads(capsys.readouterr().out))


def test_table_writes_sizes_with_commas(capsys):
    run("--sizes")
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["NAME", "PLUGIN", "PARAMETERS", "SUMMARY"]
    assert any(row.startswith("llama3-8b") and "8,030,261,248" in row for row in rows)
