"""A server in a process of its own, for hostile requests; prints its address, ends with its input.

Its chat template is one that a stranger may have written.
"""

import sys
import tempfile
from pathlib import Path

import attrs
from chat_tokenizer import TEMPLATE, write_chat_tokenizer
from hostile_requests import HOSTILE_TEMPLATE
from model_server import SMALL, chat_tokenizer, serving, small_engine

LENGTH = 2048


def main() -> None:
    """Serve until nothing more can be read."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = chat_tokenizer(
            write_chat_tokenizer(Path(folder) / "model", HOSTILE_TEMPLATE + TEMPLATE)
        )
        engine = small_engine(
            tokenizer, attrs.evolve(SMALL, max_length=LENGTH, max_num_batched_tokens=256)
        )
        with engine, serving(engine) as server:
            print(server.url, flush=True)
            sys.stdin.read()


if __name__ == "__main__":
    main()
