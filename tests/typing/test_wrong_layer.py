"""What mypy and pyright make of README's example, written wrongly in ten ways."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("basedpyright", reason="pip install basedpyright")

ROOT = Path(__file__).parents[2]

RIGHT = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)[0]

WRONG = {
    "misspelt_config_field": ("SquaredReLU.Config()", "SquaredReLU.Config(hiden_dim=64)"),
    "mistyped_config_field": ("SquaredReLU.Config()", 'SquaredReLU.Config(hidden_dim="64")'),
    "misspelt_field_in_setup": ("(in_dim=cfg.dim", "(in_dim=cfg.nothing"),
    "misspelt_child": ("relu(self.up(x))", "relu(self.upp(x))"),
    "mistyped_argument_of_child": ("return self.down(hidden)", 'return self.down("hidden")'),
    "mistyped_result_of_child": ("return self.down(hidden)", "return self.down(hidden).logits"),
    "wrong_keyword_of_replace_config": ("SquaredReLU.Config())", "SquaredReLU.Config(), att='**')"),
    "wrong_keyword_of_update_config": ('_batches": 4})', "_batches\": 4}, set_from='here')"),
    "missing_argument_of_run": ('build().run("runs/squared")', "build().run()"),
    "mistyped_argument_of_run": ('build().run("runs/squared")', "build().run(3)"),
}
"""What is in the right example, and what a person wrote instead. Each is on one line of it."""


def line_of(part: str) -> int:
    """Return the line of the example that alone has this part."""
    (line,) = [i for i, text in enumerate(RIGHT.splitlines(), 1) if part in text]
    return line


EXPECTED = {"right": set[int]()} | {name: {line_of(part)} for name, (part, _) in WRONG.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The right example and the ten wrong ones, each a file."""
    folder = tmp_path_factory.mktemp("layer")
    (folder / "right.py").write_text(RIGHT)
    for name, (right, wrong) in WRONG.items():
        (folder / f"{name}.py").write_text(RIGHT.replace(right, wrong))
    return folder


def mypy(folder: Path) -> list[tuple[str, int, str]]:
    """Return the file, the line and the words of each error, with the settings of this project."""
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary"]
    options += ["--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", *options, *map(str, sorted(folder.glob("*.py")))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert not done.stderr
    found = re.findall(r"(\w+)\.py:(\d+): error: (.*)", done.stdout)
    return [(name, int(line), words) for name, line, words in found]


def pyright(folder: Path) -> list[tuple[str, int, str]]:
    """Return the same of pyright, as it is set when nobody sets it."""
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(folder)]
    done = subprocess.run(
        [*command, "--pythonpath", sys.executable], capture_output=True, text=True, check=False
    )
    return [
        (Path(one["file"]).stem, one["range"]["start"]["line"] + 1, one["message"])
        for one in json.loads(done.stdout)["generalDiagnostics"]
        if one["severity"] == "error"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("checker", [mypy, pyright], ids=["mypy", "pyright"])
def test_checkers_find_what_is_wrong_in_a_layer_and_nothing_in_a_right_one(
    checker: Callable[[Path], list[tuple[str, int, str]]], folder: Path
) -> None:
    errors = checker(folder)
    found = {name: {line for file, line, _ in errors if file == name} for name in EXPECTED}
    assert found == EXPECTED, errors
