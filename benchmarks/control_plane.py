"""What it costs many processes to wait for one another, and to decide something together.

    python benchmarks/control_plane.py [--clients 64 512 4096] [--workers 4]

Clients of one coordination service, each with a thread of its own in one of several worker
processes, beside jax's own barrier of the same clients in the same run. Every operation is done
several times in a row: the time of one is that of all rounds, until the last client is done, over
their number. Messages are those of the busiest client.
"""

import argparse
import collections
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from _record import record

LIMIT_S = 600.0


class Counted:
    """A client that counts the messages it sends."""

    def __init__(self, client: Any) -> None:
        """Begin with none."""
        self._client = client
        self.num_messages = 0

    def __getattr__(self, name: str) -> Any:
        """Return a method that counts."""
        self.num_messages += 1
        return getattr(self._client, name)


def operations(members: Any) -> dict[str, Callable[[int], object]]:
    """Return what is measured, by name; each takes the number of a round."""
    client, milliseconds = members.client, round(LIMIT_S * 1000)

    def all_read_all(one: int) -> None:
        # What `barrier` did before: every client reads what every other one wrote.
        client.key_value_set(f"old/{one}/{members.index}", "0")
        client.wait_at_barrier(f"old{one}", milliseconds)
        client.key_value_dir_get(f"old/{one}/")

    return {
        "jax_barrier": lambda one: client.wait_at_barrier(f"jax{one}", milliseconds),
        "barrier": lambda one: members.barrier("barrier", LIMIT_S),
        "decide_together": lambda one: members.decide("stop", "0 1.0", max, LIMIT_S),
        "all_gather": lambda one: members.decide("gather", "0 1.0", json.dumps, LIMIT_S),
        "all_read_all": all_read_all,
    }


def work(port: int, count: int, indices: range, rounds: int, results: Any) -> None:
    """Be some of the clients, and put what each operation took."""
    from axcore._jax_compat import new_coordination_client
    from axcore.distributed.host_collectives import Members

    every = [
        Members(
            Counted(new_coordination_client(f"localhost:{port}", index, round(LIMIT_S))),
            index,
            count,
        )
        for index in indices
    ]
    found: dict[str, list[tuple[float, int]]] = collections.defaultdict(list)

    def run(members: Members) -> None:
        members.client.connect()
        for name, act in operations(members).items():
            members.client.wait_at_barrier(f"begin {name}", round(LIMIT_S * 1000))
            before, since = members.client.num_messages, time.perf_counter()
            for one in range(rounds):
                act(one)
            seconds = time.perf_counter() - since
            found[name].append((seconds, members.client.num_messages - before))

    threads = [threading.Thread(target=run, args=(members,)) for members in every]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    worst = {
        name: (max(one[0] for one in some), max(one[1] for one in some))
        for name, some in found.items()
    }
    results.put(worst)
    time.sleep(1)  # until the queue's thread has written
    os._exit(0)  # clients would say goodbye one by one


def measured(count: int, num_workers: int, rounds: int) -> dict[str, Any]:
    """Return the figures of a number of clients."""
    from axcore._jax_compat import serve_coordination
    from axcore.launch.local import free_port

    port = free_port()
    service = serve_coordination(port, count)
    results: Any = multiprocessing.get_context("spawn").Queue()
    share = -(-count // num_workers)
    workers = [
        multiprocessing.get_context("spawn").Process(
            target=work,
            args=(port, count, range(begin, min(count, begin + share)), rounds, results),
        )
        for begin in range(0, count, share)
    ]
    for one in workers:
        one.start()
    found = [results.get(timeout=LIMIT_S) for _ in workers]
    for one in workers:
        one.join()
    service.shutdown()
    figures: dict[str, Any] = {}
    for name in found[0]:
        seconds = max(one[name][0] for one in found) / rounds
        messages = max(one[name][1] for one in found) / rounds
        figures[name] = {"seconds": round(seconds, 4), "messages": round(messages, 2)}
    of_jax = figures["jax_barrier"]["seconds"]
    for one in figures.values():
        one["of_jax_barrier"] = round(one["seconds"] / of_jax, 2)
    return figures


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[64, 512, 4096])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    figures = {}
    for count in given.clients:
        figures[f"{count} clients"] = measured(count, given.workers, given.rounds)
        print(count, json.dumps(figures[f"{count} clients"]), flush=True)
        record("control_plane", figures)


if __name__ == "__main__":
    main()
