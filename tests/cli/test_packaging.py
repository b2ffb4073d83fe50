"""What a package index shows of each distribution: who made it, its license, and no dead link."""

import re
import shutil
import subprocess
import sys
from email import message_from_string
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = {"axcore": ROOT} | {
    path.name.replace("_", "-"): path for path in sorted(ROOT.glob("plugins/axl_*"))
}
BUILD = "from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel('made')"


@pytest.fixture(scope="module", params=DISTRIBUTIONS)
def dist_info(request, tmp_path_factory):
    """The metadata of one distribution, as pip builds it, from a copy of its sources."""
    source = tmp_path_factory.mktemp(request.param)
    for path in DISTRIBUTIONS[request.param].iterdir():
        if path.is_file():
            shutil.copy(path, source)
    package = source / request.param.replace("-", "_")
    package.mkdir()
    (package / "__init__.py").touch()
    (source / "made").mkdir()
    subprocess.run([sys.executable, "-c", BUILD], cwd=source, check=True, capture_output=True)
    (found,) = (source / "made").glob("*.dist-info")
    return found


def test_metadata_has_what_an_index_shows(dist_info):
    metadata = message_from_string((dist_info / "METADATA").read_text(encoding="utf-8"))
    assert metadata["Author"] == "The axcore authors"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Keywords"]
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert (dist_info / "licenses/LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_description_holds_no_link_into_the_repository(dist_info):
    metadata = message_from_string((dist_info / "METADATA").read_text(encoding="utf-8"))
    description = metadata.get_payload()
    assert description.startswith("# ax")
    links = re.findall(r"\]\(([^)]+)\)", description)
    assert [link for link in links if not link.startswith("https://")] == []
