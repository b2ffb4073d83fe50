"""One process of a message tree; `test_message_tree.py` starts it.

Arguments: address, number of processes, index, and which process fails. Prints what it heard, or
the error that it met.
"""

import json
import os
import sys

import numpy as np

from axcore.distributed import MessageTree, TimeLimits, exit_process, join_processes
from axcore.errors import ProcessError

MESSAGES = [
    ["greet", ("text", None, 1.5, b"\x00\xff"), {"key": {3: "value"}}],
    ["arrays", (np.arange(6, dtype=np.uint64).reshape(2, 3), np.array([True, False])), {}],
    ["end", (), {}],
]


def shown(message):
    return repr(message)


def main():
    address, count, index, failing = sys.argv[1:]
    limits = TimeLimits(join_s=60, barrier_s=60, heartbeat_s=20)
    join_processes(address, process_count=int(count), process_index=int(index), limits=limits)
    tree = MessageTree("test")
    heard = []
    try:
        if index == "0":
            for message in MESSAGES:
                tree.send(message)
            if failing != "none":
                while True:  # until the failure of another process has come this far
                    tree.send(["more", (), {}])
        else:
            for message in tree.messages():
                heard.append(shown(message))
                if index == failing:
                    tree.fail("it has no memory left")
                    os._exit(3)
                if message[0] == "end" and failing == "none":
                    break
    except ProcessError as error:
        print(json.dumps({"error": error.what}), flush=True)
        exit_process(error.exit_code)
    print(json.dumps({"heard": heard}), flush=True)
    exit_process(0)


if __name__ == "__main__":
    main()
