"""The libraries of extras: what is missing is named with the extra that brings it."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from axcore.errors import DataError
from axcore.extras import EXTRAS, import_extra

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
DISTRIBUTIONS = {
    "PIL": "pillow",
    "fsspec": "fsspec",
    "mlflow": "mlflow-skinny",
    "opentelemetry": "opentelemetry-sdk",
    "orbax": "orbax-checkpoint",
}


def _plain(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


@pytest.mark.parametrize("library", EXTRAS)
def test_each_extra_brings_its_library(library):
    needed = PROJECT["optional-dependencies"][EXTRAS[library]]
    names = {_plain(re.match("[A-Za-z0-9_.-]+", one)[0]) for one in needed}
    assert _plain(DISTRIBUTIONS.get(library, library)) in names


def test_a_missing_library_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DataError, match="a picture needs Pillow, which is not installed") as raised:
        import_extra("PIL.Image", used_by="a picture", error=DataError, where="a.png")
    assert raised.value.where == "a.png"
    assert raised.value.hint == 'pip install "axcore[images]"'
