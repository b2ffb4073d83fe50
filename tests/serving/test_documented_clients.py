"""The clients that `docs/serving.md` shows get answers, and its reference lists what there is."""

import contextlib
import io
import re
import shlex
import subprocess
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
PAGE, REFERENCE = (
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("serving.md", "serving-reference.md")
)


def blocks(language, server, page=PAGE):
    """Returns the blocks of a page, with the server's address and the model's name."""
    return [
        block.replace("http://127.0.0.1:8000/", server.url).replace('"tiny"', '"small"')
        for block in written_blocks(language, page)
    ]


def written_blocks(language, page=PAGE):
    """Returns the blocks of a page in a language, or without one, as they are written."""
    every = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    found = [block for name, block in every if name == language]
    assert found
    return found


def test_the_commands_of_the_page_get_answers(server):
    for block in blocks("sh", server):
        done = subprocess.run(
            [*shlex.split(block), "-s", "-S"], capture_output=True, text=True, check=True
        )
        assert '"finish_reason":' in done.stdout, done.stdout


def test_the_programs_of_the_page_get_answers(server):
    for block in blocks("py", server):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(block, {})
        assert out.getvalue()


def test_the_error_of_the_page_is_what_the_server_says(server):
    (block,) = blocks("json", server, REFERENCE)
    reply = server.send("v1/completions", {"prompt": "a", "temperature": -1})
    assert reply.text == block.strip().replace('": ', '":').replace(', "', ',"')


def test_the_table_of_metrics_has_what_the_server_exports(server):
    families = list(text_string_to_metric_families(server.send("metrics").text))
    exported = [
        f"{one.name}_total" if one.type == "counter" else one.name
        for one in families
        if not one.name.endswith("_created")
    ]
    (section,) = re.findall(r"^## Metrics\n(.*)", REFERENCE, re.MULTILINE | re.DOTALL)
    assert sorted(re.findall(r"`(axcore_\w+)`", section)) == sorted(exported)


def test_the_first_commands_of_the_page_are_those_of_the_readme():
    """All commands of the README are run by `tests/docs/test_user_pages.py`."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^axcore .*$", "".join(written_blocks("")), re.MULTILINE)
    assert commands
    assert all(re.search(rf"^{re.escape(line)}( |$)", readme, re.MULTILINE) for line in commands)
