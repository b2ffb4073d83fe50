"""Discovery sees what `importlib.metadata` sees, and reads little of it."""

import sys
import zipfile
from importlib.metadata import DistributionFinder, MetadataPathFinder, entry_points

import pytest

from axcore.plugins.discovery import discover


def theirs() -> set[tuple[str, str, str]]:
    """Returns what `importlib.metadata` finds in our groups."""
    points = entry_points()
    groups = [group for group in points.groups if group.startswith("axcore.v")]
    found = [point for group in groups for point in points.select(group=group)]
    return {(point.name, point.dist.name, point.dist.version) for point in found}


def ours() -> set[tuple[str, str, str]]:
    return {(one.name, one.distribution, one.version) for one in discover()}


def test_discovery_finds_what_importlib_finds(installed):
    installed.add("axl-acme")
    installed.add("axl-old", level=0)
    assert ("axl-acme", "axl-acme", "1.0") in ours()
    assert ours() == theirs()


def test_first_of_two_versions_counts(installed, tmp_path, monkeypatch):
    installed.add("axl-acme")
    installed.add("axl-acme", version="2.0")
    other = tmp_path / "other"
    other.mkdir()
    (tmp_path / "axl_acme-1.0.dist-info").rename(other / "axl_acme-1.0.dist-info")
    monkeypatch.syspath_prepend(str(other))
    versions = {version for name, _, version in ours() if name == "axl-acme"}
    assert versions == {"1.0"}
    assert ours() == theirs()


def test_plugin_in_an_archive_is_found(installed, tmp_path, monkeypatch):
    installed.add("axl-acme")
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("METADATA", "entry_points.txt"):
            path = tmp_path / "axl_acme-1.0.dist-info" / name
            file.write(path, f"axl_acme-1.0.dist-info/{name}")
            path.unlink()
    (tmp_path / "axl_acme-1.0.dist-info").rmdir()
    assert not [one for one in discover() if one.name == "axl-acme"]
    monkeypatch.syspath_prepend(str(archive))
    assert [one.version for one in discover() if one.name == "axl-acme"] == ["1.0"]


def test_plugin_of_a_finder_of_others_is_found(installed, tmp_path, monkeypatch):
    installed.add("axl-acme")

    class Finder:
        @staticmethod
        def find_spec(*args):
            return None

        @staticmethod
        def find_distributions(context):
            elsewhere = DistributionFinder.Context(path=[str(tmp_path)])
            return MetadataPathFinder.find_distributions(elsewhere)

    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    assert not [one for one in discover() if one.name == "axl-acme"]
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert [one.version for one in discover() if one.name == "axl-acme"] == ["1.0"]


@pytest.mark.parametrize("entry", ["", "/no/such/folder", "relative"])
def test_strange_entries_of_the_search_path_are_passed_over(monkeypatch, entry):
    before = ours()
    monkeypatch.syspath_prepend(entry)
    assert ours() == before
