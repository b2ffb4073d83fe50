"""`import axcore as ax`: what scripts need, without jax before it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import axcore as ax

FACE = Path(ax.__file__)


def in_new_process(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_face_is_listed_and_configs_are_made_without_jax() -> None:
    program = """
import sys, axcore as ax
@ax.config
class Size:
    dim: int = ax.REQUIRED
ax.update_config(ax.evolve(Size(dim=1), dim=2), {"dim": 3})
print({"Trainer", "load_run"} <= set(dir(ax)), "jax" in sys.modules)
"""
    assert in_new_process(program).split() == ["True", "False"]


@pytest.mark.parametrize("name", ax.__all__)
def test_every_name_of_the_face_is_there(name: str) -> None:
    assert getattr(ax, name) is not None
    assert name in dir(ax)


def test_type_checkers_see_the_names_from_where_they_come_from() -> None:
    block = next(node for node in ast.parse(FACE.read_text()).body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == ax._LAZY


@pytest.mark.parametrize("before", ["", "import axcore.config\n", "import axcore.config.edit\n"])
def test_config_is_the_decorator_whatever_was_imported(before: str) -> None:
    program = (
        f"{before}import axcore as ax\nfrom axcore.config import config\nprint(ax.config is config)"
    )
    assert in_new_process(program).strip() == "True"


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'axcore' has no attribute 'load_runs'"):
        ax.load_runs  # noqa: B018


def test_python_m_axcore_is_the_command() -> None:
    command = [sys.executable, "-m", "axcore", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"axcore, version {ax.__version__}"
