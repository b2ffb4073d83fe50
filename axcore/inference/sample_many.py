"""`sample_many`: completions of many requests in their order, with as many in flight as is useful.

For whatever has all its prompts at hand: batch inference, rollouts, distillation.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator

from axcore.inference.completion import Completion, CompletionStream
from axcore.inference.replicas import AnyEngine
from axcore.inference.request import QueueFull, Request

_IN_FLIGHT_PER_SLOT = 16
"""Requests in flight for each slot: a completion that is 16 times as long as those after it leaves
no slot empty. Each holds little more than its tokens."""


def sample_many(
    engine: AnyEngine, requests: Iterable[Request], *, max_in_flight: int | None = None
) -> Iterator[Completion]:
    """Yield the completion of each request, in the order of the requests.

    Requests are taken from the iterable as there is room for them. When the caller stops before
    the end, or something is raised, those in flight are cancelled.

    Args:
        engine: What samples.
        requests: Any number; they may be made as they are asked for.
        max_in_flight: Requests that were submitted and whose completions were not yielded; None
            takes 16 for each slot of the engine.

    Raises:
        RequestError: A request can never be answered; completions before it were not all yielded.
        EngineError: The engine is closed, or a step failed.
    """
    limit = max_in_flight or _IN_FLIGHT_PER_SLOT * engine.stats().num_slots
    coming = iter(requests)
    in_flight: deque[CompletionStream] = deque()
    refused: Request | None = None
    try:
        while True:
            while len(in_flight) < limit:
                request, refused = refused or next(coming, None), None
                if request is None:
                    break
                try:
                    in_flight.append(engine.submit(request))
                except QueueFull:
                    if not in_flight:  # others fill the queue, and nothing of ours will empty it
                        raise
                    refused = request
                    break
            if not in_flight:
                return
            completion = in_flight[0].result()
            # Not before it is there: what interrupts the wait cancels it with the others.
            in_flight.popleft()
            yield completion
    finally:
        for stream in in_flight:
            stream.cancel()


def sample_seed(*parts: object) -> int:
    """Return the seed of one sample, of 64 bits, which follows from its parts alone.

    Args:
        parts: What distinguishes it, as the seed of all, the number of the prompt and its own.
    """
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
