"""Many processes of a run as threads of one, each with a client of its own.

Arguments: how many. Prints what the busiest sent for each call, what each returned, and how many
keys are left.
"""

import contextlib
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from axcore._jax_compat import new_coordination_client, serve_coordination
from axcore.distributed.host_collectives import Members
from axcore.errors import ProcessError
from axcore.launch.local import free_port

ROUNDS = 4


class Counted:
    """A client that counts the messages it sends."""

    def __init__(self, client):
        self._client, self.num_messages = client, 0

    def __getattr__(self, name):
        self.num_messages += 1
        return getattr(self._client, name)


def joined(port, index, count):
    client = new_coordination_client(f"localhost:{port}", index, 60)
    client.connect()
    return Members(Counted(client), index, count)


def late_error(members, is_late, everybody):
    if is_late:
        everybody.wait(30)
    try:
        members.barrier("step 4", 0.5)
    except ProcessError as error:
        if not is_late:
            everybody.wait(30)
        return error.what


def main():
    count = int(sys.argv[1])
    port = free_port()
    service = serve_coordination(port, count)  # noqa: F841 - it serves as long as it is referred to
    with contextlib.ExitStack() as stack:
        # A thread of its own for each, as processes have: they forget keys by thread.
        threads = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(count)]

        def at_once(act, values):
            begun = [one.submit(act, value) for one, value in zip(threads, values, strict=True)]
            return [one.result() for one in begun]

        every = at_once(lambda index: joined(port, index, count), range(count))

        def measured(act):
            before = [one.client.num_messages for one in every]
            for _ in range(ROUNDS):
                found = at_once(act, every)
            sent = [one.client.num_messages - was for one, was in zip(every, before, strict=True)]
            return found, max(sent) / ROUNDS, max(sent[1:]) / ROUNDS

        out = {
            "barrier": measured(lambda one: one.barrier("a", 30)),
            "decide": measured(lambda one: one.decide("b", str(one.index), max, 30)),
            "broadcast": measured(lambda one: one.broadcast("c", lambda: "made", 30)),
        }
        everybody = threading.Barrier(count)
        late = range(count - 2, count)
        out["late"] = at_once(lambda one: late_error(one, one.index in late, everybody), every)
        at_once(lambda one: one.barrier("at the end", 30), every)
        out["keys left"] = len(every[0].client.key_value_dir_get("axcore/"))
    print(json.dumps(out), flush=True)
    os._exit(0)  # clients would wait for one another


if __name__ == "__main__":
    main()
