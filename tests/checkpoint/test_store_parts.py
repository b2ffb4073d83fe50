"""Several processes keep steps in an object store, each from a disk of its own."""

import json
from pathlib import Path

import pytest
from object_server import environment, faulty_proxy, new_bucket, object_server
from several_processes import finish, start_all

WORKER = Path(__file__).with_name("store_parts_worker.py")


@pytest.fixture(scope="module")
def server():
    with object_server() as (port, _):
        yield port


@pytest.fixture
def proxy(server, monkeypatch):
    """A proxy of the server, with a bucket of its own."""
    with faulty_proxy(server) as proxy:
        for name, value in environment(proxy.server_port).items():
            monkeypatch.setenv(name, value)
        proxy.bucket = new_bucket(server)
        yield proxy


def start(proxy, disks, task, *steps, count=2, devices=2):
    """Starts processes, each of which has a disk that no other sees."""
    directory = f"s3://{proxy.bucket}/run?staging={disks}/{{process}}"
    return start_all(
        WORKER, directory, task, *steps, count=count, devices=devices,
        environment=environment(proxy.server_port),
    )  # fmt: skip


def run(*arguments, **fields):
    return [finish(one, 200) for one in start(*arguments, **fields)]


def told(ended):
    assert [one.exit_code for one in ended] == [0] * len(ended), ended
    return [json.loads(one.stdout.splitlines()[-1]) for one in ended]


@pytest.mark.slow
def test_each_process_uploads_its_part_and_restores_on_an_empty_disk(proxy, tmp_path):
    told(run(proxy, tmp_path / "a", "save", 1, 2))
    for count in (2, 4, 1):
        found = told(run(proxy, tmp_path / f"b{count}", "restore", count=count, devices=4 // count))
        assert [one["step"] for one in found] == [2] * count
        assert all(one["is right"] for one in found)
        assert [one["warnings"] for one in found] == [[]] * count
