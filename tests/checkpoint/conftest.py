"""Disks that really fail, files that even root may not change, and stores that drop requests."""

import subprocess

import pytest
from object_server import environment, faulty_proxy, new_bucket, object_server


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


@pytest.fixture(scope="module")
def server():
    """The port of an object store."""
    with object_server() as (port, _):
        yield port


@pytest.fixture
def proxy(server, monkeypatch):
    """A proxy of the store with a bucket of its own, which drivers of this process go through."""
    with faulty_proxy(server) as proxy:
        for name, value in environment(proxy.server_port).items():
            monkeypatch.setenv(name, value)
        proxy.bucket = new_bucket(server)
        yield proxy
