"""A compiled train step in pieces: a report of `tiny` on host devices, made once."""

import json

import pytest

from axcore.aot import report_from_json
from axcore.testing import CommandLine


@pytest.fixture(scope="session")
def aot(tmp_path_factory):
    """Returns a function that runs `axcore aot` in an interpreter of its own."""
    run = CommandLine(folder=tmp_path_factory.mktemp("aot"))
    return lambda *arguments: run("aot", *arguments)


@pytest.fixture(scope="session")
def tiny_json(aot):
    """Returns the JSON of `tiny`, its layers in a loop, compiled for eight host devices."""
    loop = ("--set", "model.decoder.stack.unroll=1")
    ran = aot("tiny", "--target", "cpu-8", "--json", *loop)
    assert ran.exit_code == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="session")
def tiny_report(tiny_json):
    """Returns the same as a report."""
    return report_from_json(json.dumps(tiny_json))
