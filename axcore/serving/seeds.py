"""The seeds of answers, from those of requests or from the server's own."""

import hashlib
import random

from axcore.serving.settings import Settings


class Seeds:
    """Gives each answer a seed.

    Args:
        seed: What the seeds of requests that send none follow from, in the order in which they
            come; None takes entropy of the operating system.
    """

    def __init__(self, seed: int | None) -> None:
        self._random = random.Random(seed)

    def of(self, settings: Settings) -> list[int]:
        """Returns the seeds of the answers to one prompt.

        The first is the request's own, so that it is answered as if it were alone; the others
        follow from it.
        """
        first = self._random.getrandbits(31) if settings.seed is None else settings.seed
        return [
            _seed(first if index == 0 else f"{first}/{index}")
            for index in range(settings.num_choices)
        ]


def _seed(source: int | str) -> int:
    if isinstance(source, int) and 0 <= source < 2**31:
        return source
    return int.from_bytes(hashlib.sha256(str(source).encode()).digest()[:4]) >> 1
