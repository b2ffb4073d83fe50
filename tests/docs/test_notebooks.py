"""The notebooks of docs/notebooks run, and print what they were committed with."""

import importlib.util
import re
from pathlib import Path

import nbformat
import pytest
from quick_flags import xla_flags

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "tools" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_was_committed_with(notebook, tool, tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", xla_flags())
    committed = tool.printed(nbformat.read(notebook, as_version=4))
    assert any(committed)
    found = tool.printed(tool.executed(notebook, folder=tmp_path))
    assert found == committed, "run: make notebooks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        ("import os; print(os.getcwd())", "shows the path"),
        ("import warnings; warnings.warn('old')", "writes to stderr"),
    ],
)
def test_paths_and_warnings_are_never_kept(code, refusal, tool, tmp_path):
    cell = nbformat.v4.new_code_cell(code)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "wrong.ipynb")
    with pytest.raises(ValueError, match=f"wrong.ipynb, cell 0 {refusal}"):
        tool.executed(tmp_path / "wrong.ipynb", folder=tmp_path)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_somewhere(notebook):
    text = notebook.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (FOLDER / link).exists(), link
