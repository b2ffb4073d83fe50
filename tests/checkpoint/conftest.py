"""Disks that really fail: small ones, and files that even root may not change."""

import subprocess

import pytest


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def immutable():
    """A function that makes a file or directory one that nobody may change or delete."""
    made = []

    def make(path):
        done = run("chattr", "+i", str(path))
        if done.returncode:
            pytest.skip(f"the file system has no immutable files here: {done.stderr}")
        made.append(path)

    yield make
    for path in made:
        run("chattr", "-i", str(path))


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a disk of so many megabytes and returns its directory."""
    mounted = []

    def mount(megabytes):
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        done = run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(path))
        if done.returncode:
            pytest.skip(f"no disk can be mounted here: {done.stderr}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        run("umount", "-l", str(path))
