"""Executes the notebooks of docs/notebooks, each in an empty folder, and keeps what they print.

    python tools/notebooks.py [NOTEBOOK...]

A cell with the tag `varies` prints what depends on the processor or on time, such as losses and
texts of a model; the test that executes notebooks compares what all others print.
"""

import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOKS = tuple(sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")))
VARIES = "varies"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def executed(notebook: Path, *, folder: Path) -> nbformat.NotebookNode:
    """Return a notebook as it is after all its cells ran in a folder, which should be empty.

    Raises:
        CellExecutionError: A cell raised.
        ValueError: A cell writes to stderr, or what it shows names the folder or this checkout.
    """
    nb = nbformat.read(notebook, as_version=4)
    with mock.patch.dict(os.environ, _variables(folder)):
        NotebookClient(
            nb,
            kernel_name=KERNEL["name"],
            timeout=300,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
        ).execute()
    for number, cell in enumerate(nb.cells):
        cell.id = f"cell-{number}"
        cell.metadata.pop("execution", None)  # times
    nb.metadata = {"kernelspec": dict(KERNEL), "language_info": {"name": "python"}}
    _check_shown(nb, notebook, folder)
    return nb


def printed(nb: nbformat.NotebookNode) -> list[str]:
    """Return what each cell of code prints, without those that are tagged `varies`."""
    cells = [cell for cell in nb.cells if cell.cell_type == "code"]
    return [
        "".join(one.text for one in cell.outputs if one.get("name") == "stdout")
        for cell in cells
        if VARIES not in cell.metadata.get("tags", ())
    ]


def _variables(folder: Path) -> dict[str, str]:
    """Return variables for the kernel: one that finds commands, and keep nothing at home."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    home = {name: str(folder / ".home") for name in ("HOME", "IPYTHONDIR", "XDG_STATE_HOME")}
    return {"PATH": path, "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1", **home}


def _check_shown(nb: nbformat.NotebookNode, notebook: Path, folder: Path) -> None:
    for number, cell in enumerate(nb.cells):
        outputs = cell.get("outputs", [])
        shown = repr(outputs)
        if any(one.get("name") == "stderr" for one in outputs):
            raise ValueError(f"{notebook.name}, cell {number} writes to stderr: {shown}")
        for path in (folder, ROOT, Path(sys.prefix)):
            if str(path) in shown:
                raise ValueError(f"{notebook.name}, cell {number} shows the path {path}: {shown}")


def main(names: list[str]) -> None:
    """Executes the notebooks with these names, or all, and writes them."""
    for notebook in [Path(name) for name in names] or NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nb = executed(notebook, folder=Path(folder))
        nbformat.write(nb, notebook)
        print(f"{notebook.name}: {len(nb.cells)} cells")


if __name__ == "__main__":
    main(sys.argv[1:])
