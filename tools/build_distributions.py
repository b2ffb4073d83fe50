"""Build wheels and sdists of axcore and its plugins: `python tools/build_distributions.py FOLDER`.

They are built from the commit that is checked out, and the same commit gives the same bytes: the
files are those of `git archive`, times are those of the commit, and archives are written in order.
"""

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# The backend of pyproject.toml, called as pip calls it, but in this environment: a build that
# downloads its tools is not the same one tomorrow.
BUILD = (
    "import sys; folder = sys.argv[1]; from setuptools import build_meta; "
    "build_meta.build_wheel(folder); build_meta.build_sdist(folder)"
)


def git(*arguments: str) -> bytes:
    """Return what a git command prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def sorted_archive(packed: bytes, time: int) -> bytes:
    """Return a `.tar.gz` with its members in order, of one time and of nobody."""
    out, plain = io.BytesIO(), io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as there,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as made,
    ):
        for member in sorted(there.getmembers(), key=lambda one: one.name):
            member.mtime, member.uid, member.gid = time, 0, 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            made.addfile(member, there.extractfile(member) if member.isfile() else None)
    with gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=time) as file:
        file.write(plain.getvalue())
    return out.getvalue()


def build(folder: Path, commit: str = "HEAD") -> list[Path]:
    """Build all distributions of a commit into a folder, and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    time = int(git("log", "-1", "--format=%ct", commit))
    # Zip files cannot have times before 1980, and have those of their files otherwise.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time), "PYTHONHASHSEED": "0"}
    found = []
    with tempfile.TemporaryDirectory() as name:
        source, made = Path(name, "source"), Path(name, "made")
        made.mkdir()
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as files:
            files.extractall(source, filter="data")
        for project in (source, *sorted(source.glob("plugins/axl_*"))):
            subprocess.run(
                [sys.executable, "-c", BUILD, str(made)],
                cwd=project,
                env=environment,
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        for path in sorted(made.iterdir()):
            data = path.read_bytes()
            data = sorted_archive(data, time) if path.name.endswith(".tar.gz") else data
            (folder / path.name).write_bytes(data)
            found.append(folder / path.name)
    return found


if __name__ == "__main__":
    for path in build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")):
        data = path.read_bytes()
        print(f"{hashlib.sha256(data).hexdigest()}  {path.name}  {len(data) / 1024:.0f} KiB")
