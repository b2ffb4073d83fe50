"""Processes that keep steps in an object store, each with a disk that no other sees."""

import json
from pathlib import Path

from object_server import ask, environment
from several_processes import finish, start_all

WORKER = Path(__file__).parents[1] / "checkpoint" / "store_parts_worker.py"


def start(proxy, disks, *steps, count=2, devices=2, more=None, **task):
    """Starts processes, each of which has a disk that no other sees."""
    directory = f"s3://{proxy.bucket}/run?staging={disks}/{{process}}"
    return start_all(
        WORKER, directory, json.dumps(task), *steps, count=count, devices=devices,
        environment={**environment(proxy.server_port), **(more or {})},
    )  # fmt: skip


def told(processes):
    """What each process said last."""
    ended = [finish(one, 200) for one in processes]
    assert [one.exit_code for one in ended] == [0] * len(ended), ended
    return [lines_of(one)[-1] for one in ended]


def lines_of(ended):
    # Gloo writes to the standard output, too.
    return [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]


def names_of(proxy):
    text = ask(proxy.target, "GET", f"/{proxy.bucket}?list-type=2&prefix=run/")[2].decode()
    return [part.partition("</Key>")[0] for part in text.split("<Key>")[1:]]
