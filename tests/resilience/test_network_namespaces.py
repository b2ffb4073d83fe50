"""Two hosts with a network, a disk and nothing else each, that share an object store alone.

Each host is a network namespace behind a bridge. Its agent sees an own folder at a path that both
hosts name alike, as two machines with local disks do.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from guarded_run import guarded_config
from object_server import environment, object_server
from quick_flags import compile_cache, quick_environment

from axcore.checkpoint import Checkpointer
from axcore.config import to_json, update_config

LIMIT_S = 400
NETWORK = "10.213.77"
PORT = 29811


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@pytest.fixture
def hosts():
    """The names of two network namespaces, at .10 and .11 of a network where this process is .1."""
    number = os.getpid() % 100_000
    bridge, names = f"axb{number}", [f"axn{number}-{index}" for index in range(2)]
    commands = [
        f"link add {bridge} type bridge",
        f"addr add {NETWORK}.1/24 dev {bridge}",
        f"link set {bridge} up",
    ]
    for index, name in enumerate(names):
        outer, inner = f"axo{number}{index}", f"axi{number}{index}"
        commands += [
            f"netns add {name}",
            f"link add {outer} type veth peer name {inner} netns {name}",
            f"link set {outer} master {bridge} up",
            f"-n {name} addr add {NETWORK}.{10 + index}/24 dev {inner}",
            f"-n {name} link set {inner} up",
            f"-n {name} link set lo up",
        ]
    try:
        for command in commands:
            done = ip(*command.split())
            if done.returncode:
                pytest.skip(f"no network namespaces here: ip {command}: {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)
        ip("link", "del", bridge)


class Host:
    """A namespace with an agent, and a disk that the agent sees at `place`."""

    def __init__(self, name, index, disk, place, store):
        self.name, self.index, self.disk, self.place, self.store = name, index, disk, place, store
        self.agent = None

    def start(self):
        # By its own name a host finds its address, not that of the loopback, which gloo would take.
        named = f"hostname axhost{self.index} && mount --bind {self.place.parent}/hosts /etc/hosts"
        mounted = f"{named} && mount --bind {self.disk} {self.place} && cd {self.place} && exec "
        run = f"-m axcore agent small.json -n 2 --dir {self.place}/run --policy rejoin_s=120"
        # `ip netns exec` gives a process its own mounts, too, so the other host sees none of this.
        shell = ("unshare", "--uts", "sh", "-c", f"{mounted}{sys.executable} {run}")
        command = ("ip", "netns", "exec", self.name, *shell)
        place = {
            "AXCORE_COORDINATOR": f"{NETWORK}.10:{PORT}",
            "AXCORE_NUM_PROCESSES": "2",
            "AXCORE_PROCESS_ID": str(self.index),
            "AXCORE_LAUNCH_SECRET": "of this test alone",
            "PYTHONPATH": os.pathsep.join(sys.path),
            **self.store,
            **compile_cache(self.place / "compiled"),
        }
        with (self.disk.parent / f"out{self.index}").open("a") as out:
            environment = {**quick_environment(), **place}
            self.agent = subprocess.Popen(command, env=environment, stdout=out, stderr=out)

    def said(self):
        return (self.disk.parent / f"out{self.index}").read_text()

    def events(self, name):
        path = self.disk / "run/events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [one for one in map(json.loads, lines) if one["event"] == name]

    def lose(self):
        """Kills what runs here, and makes the disk an empty one."""
        pids = ip("netns", "pids", self.name).stdout.split()
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.agent.wait(60)
        for entry in self.disk.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def fill(disk, place, directory):
    """Puts the data and the config of a run on a disk."""
    disk.mkdir(exist_ok=True)
    changes = {
        "max_steps": 1_000_000, "eval_every_steps": 1_000_000,
        "data.source.folder": f"{place}/text",
        "checkpoint.every_steps": 20, "checkpoint.directory": directory,
        "checkpoint.single_replica_restore": True,
    }  # fmt: skip
    cfg = update_config(guarded_config(disk / "text"), changes)
    (disk / "small.json").write_text(to_json(cfg))


def wait_for(is_there, what, hosts):
    end = time.monotonic() + LIMIT_S
    while not is_there():
        said = "\n".join(host.said()[-3000:] for host in hosts)
        assert time.monotonic() < end, f"{what} did not come\n{said}"
        time.sleep(0.2)


@pytest.mark.slow
def test_hosts_that_share_an_object_store_alone_lose_a_process_and_a_host(
    hosts, tmp_path, monkeypatch
):
    place = tmp_path / "disk"
    place.mkdir()
    lines = [f"{NETWORK}.{10 + index} axhost{index}" for index in range(2)]
    (tmp_path / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    with object_server("0.0.0.0") as (port, bucket), contextlib.ExitStack() as ending:
        store = {**environment(port), "AWS_ENDPOINT_URL": f"http://{NETWORK}.1:{port}"}
        directory = f"s3://{bucket}/run?staging={place}/staging"
        both = []
        for index, name in enumerate(hosts):
            fill(tmp_path / f"disk{index}", place, directory)
            both.append(Host(name, index, tmp_path / f"disk{index}", place, store))
            ending.callback(both[-1].lose)
            both[-1].start()
        first, second = both
        for variable, value in environment(port).items():
            monkeypatch.setenv(variable, value)
        mine = Checkpointer.Config().build(
            directory=directory.replace(str(place), str(tmp_path / "mine"))
        )

        def wait_for_attempt(number):
            """Waits until an attempt makes steps and has saved one."""
            wait_for(lambda: len(first.events("stepping")) >= number, f"start {number}", both)
            known = mine.latest() or 0
            wait_for(lambda: (mine.latest() or 0) > known, f"a step after {known}", both)

        wait_for_attempt(1)
        os.kill(first.events("processes_started")[-1]["pids"][1], signal.SIGKILL)
        wait_for_attempt(2)
        second.lose()
        fill(second.disk, place, directory)
        second.start()
        wait_for_attempt(3)
        for host in both:
            host.agent.send_signal(signal.SIGTERM)
        assert [host.agent.wait(120) for host in both] == [130, 130], first.said()[-3000:]
        assert not list(second.disk.glob("run/checkpoints*"))
        assert not list(second.disk.glob("staging/*"))
        mine.verify(mine.latest())
        assert first.said().count("resuming at step") == 2
