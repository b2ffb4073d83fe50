"""A feature that is carried by an argument of an existing module does not pass the gate."""

import shutil
from pathlib import Path

import pytest

from axcore.complexity.surface import check_surface, parse_surface, read_surface, surface_text
from axcore.errors import ComplexityError

PACKAGE = Path(__file__).parents[2] / "axcore"
RECORDED = Path(__file__).with_name("surface.txt")


@pytest.fixture
def copy(tmp_path):
    folder = tmp_path / "axcore"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def edit(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))


def test_no_existing_module_was_widened():
    check_surface(parse_surface(RECORDED.read_text()), read_surface(PACKAGE))


def test_a_field_added_to_carry_a_feature_is_found(copy):
    before = read_surface(copy)
    edit(
        copy,
        "layers/attention/self_attention.py",
        "        num_heads: PositiveInt = REQUIRED\n",
        "        num_heads: PositiveInt = REQUIRED\n        use_rotation: bool = False\n",
    )
    with pytest.raises(ComplexityError, match=r"Attention\.Config takes use_rotation"):
        check_surface(before, read_surface(copy))


def test_an_argument_added_to_a_method_is_found(copy):
    before = read_surface(copy)
    edit(copy, "layers/transformer.py", "def forward(self, x:", "def forward(self, expert, x:")
    with pytest.raises(ComplexityError, match=r"FeedForward\.forward takes expert"):
        check_surface(before, read_surface(copy))


def test_an_argument_added_to_a_model_function_is_found(copy):
    before = read_surface(copy)
    edit(
        copy,
        "models/causal_lm.py",
        "    vocab_size: int,\n",
        "    moe: int,\n    vocab_size: int,\n",
    )
    with pytest.raises(ComplexityError, match=r"transformer takes moe"):
        check_surface(before, read_surface(copy))


def test_a_new_module_widens_nothing(copy):
    before = read_surface(copy)
    (copy / "layers" / "fresh.py").write_text("def fresh(anything):\n    return anything\n")
    init = copy / "layers" / "__init__.py"
    init.write_text(init.read_text() + "from axcore.layers.fresh import fresh\n")
    now = read_surface(copy)
    assert now["layers/fresh.py:fresh"] == ("anything",)
    check_surface(before, now)


def test_a_surface_survives_being_written():
    surface = read_surface(PACKAGE)
    assert parse_surface(surface_text(surface)) == surface
