"""The pages on plugins: what they show works, and they keep step with hooks and records."""

import re
from pathlib import Path

import pytest
from fresh_environment import FreshEnvironment

from axcore import testing
from axcore.cli import kernel_reference
from axcore.errors import ConfigError
from axcore.plugins import Command, plugin_host
from axcore.plugins.hook_reference import COMMAND, hook_reference
from axcore.plugins.records import Hooks

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "plugins"
OURS = {"core", *(path.name.replace("_", "-") for path in (ROOT / "plugins").glob("axl_*"))}


def blocks(page: str, language: str) -> list[str]:
    """Returns the code blocks of a page in a language; "" for those that name none."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def test_hook_page_is_made_from_the_records():
    if {plugin.name for plugin in plugin_host().plugins()} != OURS:
        pytest.skip("other plugins are installed, or some of the five are not")
    assert (PAGES / "hooks.md").read_text() == hook_reference(), f"run: {COMMAND}"


def test_every_hook_is_on_the_page_of_what_uses_it():
    text = (PAGES / "README.md").read_text() + (PAGES / "hooks.md").read_text()
    for name in Hooks.decorators():
        assert name.replace("_", " ") in text.replace("_", " ")


def test_every_suite_is_explained():
    text = (PAGES / "README.md").read_text()
    suites = {name for name in testing.__all__ if name.endswith("Suite")}
    assert suites == set(re.findall(r"^\| `(\w+Suite)` \|", text, re.MULTILINE))


def test_tutorial_is_as_short_as_it_says():
    page = (PAGES / "tutorial.md").read_text()
    count = lambda text: len([line for line in text.splitlines() if line.strip()])  # noqa: E731
    (toml,) = blocks(page, "toml")
    plugin, layer, _ = blocks(page, "python")
    assert (count(toml), count(plugin) + count(layer)) == (6, 25)
    assert "6 lines of\nTOML and 25 of Python" in page


def test_variant_of_several_classes_does_what_the_page_says(make_dist, capsys):
    page = (PAGES / "README.md").read_text().split("## A variant of several classes")[1]
    plugin, layers, use, wrong = blocks(page, "python")
    printed, refused = blocks(page, "text")
    make_dist("axl-hyper", plugin, files={"layers.py": layers})
    names: dict[str, object] = {}
    exec(use, names)
    assert capsys.readouterr().out == printed
    with pytest.raises(ConfigError) as raised:
        exec(wrong, names)
    assert f"ConfigError: {raised.value}" == refused.rstrip()


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Returns the environment of somebody who followed the tutorial, and the plugin's folder."""
    folder = tmp_path_factory.mktemp("axl_squared")
    page = (PAGES / "tutorial.md").read_text()
    (toml,) = blocks(page, "toml")
    files = ("axl_squared/plugin.py", "axl_squared/layer.py", "tests/test_squared.py")
    for path, text in zip(("pyproject.toml", *files), (toml, *blocks(page, "python")), strict=True):
        assert f"`{path}`" in page
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    made = FreshEnvironment(tmp_path_factory.mktemp("fresh"), ["axl-squared"])
    made.install(folder)
    return made, folder


@pytest.mark.slow
def test_commands_of_the_tutorial_show_what_it_says(followed):
    made, folder = followed
    ran = made.axcore("config", "diff", "tiny", "--modify", "squared", folder=folder)
    assert "feed_forward: SquaredReLU" in ran.stdout, ran.stderr
    ran = made.axcore("plugins", "-v", folder=folder)
    assert "layer variant: squared" in ran.stdout, ran.stderr


@pytest.mark.slow
def test_tests_of_the_tutorial_pass(followed):
    made, folder = followed
    ran = made.pytest("tests", folder=folder)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda path: path.name)
def test_pages_name_commands_and_links_that_are_there(page):
    text = page.read_text()
    commands = {command.name for command in plugin_host().records(Command)}
    for name in re.findall(r"(?:^|`)axcore ([a-z]+)", text, re.MULTILINE):
        assert name in commands | {"plugin"}, f"axcore {name}"
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / link).exists(), link


def test_tables_of_kernels_are_made_from_the_records():
    if {plugin.name for plugin in plugin_host().plugins()} != OURS:
        pytest.skip("other plugins are installed, or some of the five are not")
    page = (ROOT / kernel_reference.PAGE).read_text()
    assert page == kernel_reference.with_reference(page), f"run: {kernel_reference.COMMAND}"


@pytest.mark.parametrize("page", ["kernels.md", "hardware.md", "plugins/failures.md"])
def test_no_cell_of_a_table_holds_a_paragraph(page):
    text = (ROOT / "docs" / page).read_text()
    cells = [
        cell.strip() for line in text.splitlines() if line[:1] == "|" for cell in line.split("|")
    ]
    assert [cell for cell in cells if len(cell) > 180] == []
