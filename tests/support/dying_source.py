"""A source whose reader is killed, as one is that runs out of memory."""

import os
import signal
from pathlib import Path

from axcore.config import REQUIRED, config
from axcore.data import JsonLines


class DyingLines(JsonLines):
    """Lines; whoever reads the end of `b.jsonl` is killed until it has died so often."""

    @config
    class Config(JsonLines.Config):
        """How often, counted in a folder.

        Attributes:
            deaths: Where a file is made at each death.
            times: How often.
        """

        deaths: str = REQUIRED
        times: int = 1

    def records(self, span):
        deaths = Path(self.config.deaths)
        died = len(list(deaths.iterdir()))
        is_last = span.file.name == "b.jsonl" and span.end is None
        if is_last and died < self.config.times:
            (deaths / str(died)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().records(span)
