"""The documentation as a whole: its map is up to date, and no code on it is left untested."""

import importlib.util
import re
from pathlib import Path

import pytest
from pages import commands, python_blocks

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def draw_map():
    spec = importlib.util.spec_from_file_location("draw_map", ROOT / "tools" / "draw_map.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_map_shows_the_imports_as_they_are(draw_map):
    assert draw_map.MAP.read_text() == draw_map.draw(), "run: python tools/draw_map.py"


def test_a_line_is_drawn_only_where_no_longer_way_leads_there(draw_map):
    graph = {"top": {"middle", "bottom"}, "middle": {"bottom"}, "bottom": set()}
    assert draw_map.reduced(graph) == {"top": {"middle"}, "middle": {"bottom"}, "bottom": set()}


def test_every_page_with_code_has_a_test_that_runs_it():
    tests = "\n".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    with_code = {page.name for page in PAGES if python_blocks(page) or commands(page)}
    assert len(with_code) > 10
    assert {name for name in with_code if name not in tests} == set()


def test_every_page_is_on_the_site():
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    names = {str(page.relative_to(ROOT / "docs")) for page in PAGES}
    assert {name for name in names if not name.startswith("design/")} <= listed


def test_the_readme_can_be_read_at_once():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
