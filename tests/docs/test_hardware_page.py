"""`docs/hardware.md`: every block of Python and every command prints what the page says."""

import re
import shlex
from pathlib import Path

import pytest
from pages import commands, run_page

from axcore.cli.main import main
from axcore.modifiers.remat import REMAT_PRESETS
from axcore.plugins import Modifier, plugin_host

PAGE = Path(__file__).parents[2] / "docs" / "hardware.md"
COMMANDS = commands(PAGE)


def test_every_block_of_python_prints_what_the_page_says():
    assert run_page(PAGE) >= 5


@pytest.mark.parametrize("command", COMMANDS, ids=[command.code for command in COMMANDS])
def test_every_command_prints_what_the_page_says(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command.code)[1:])
    out = capsys.readouterr().out
    assert ended.value.code == (1 if " diff " in command.code else 0)
    assert out == command.printed if command.printed else len(out.splitlines()) > 5


def test_tables_of_modifiers_and_of_policies_are_complete():
    text = PAGE.read_text(encoding="utf-8")
    core = {one.name for one in plugin_host().records(Modifier) if one.plugin == "core"}
    assert core - {"lora"} <= set(re.findall(r"^\| `\w+\(.*?\)` \| `(\w+)` \|", text, re.MULTILINE))
    assert set(REMAT_PRESETS) <= set(re.findall(r"`(\w+)`", text))
