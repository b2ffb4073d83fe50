"""A worker of a build: `python -m axcore.data.store.worker FOLDER PACKAGES PARENT`.

It builds the parts whose numbers it reads, a line each, and answers each with a line of JSON.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from axcore.config import trusting
from axcore.data.store.part import PartBuilder
from axcore.data.store.plan import read_plan
from axcore.errors import AxcoreError


def main() -> None:
    """Serve until there are no more numbers to read."""
    folder, packages, parent = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3])
    # A copy of stdout, before anything may print to it.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what a source prints must not mix with the answers
        # The plan may contain configs of the user's own packages. The parent has imported them, so
        # it is safe to import them here.
        with trusting(packages):
            builder: PartBuilder | None = None
            for line in sys.stdin:
                if os.getppid() != parent:
                    return  # whoever asked was killed, and another build may have begun
                try:
                    builder = builder or PartBuilder(folder, read_plan(folder))
                    builder.build(int(line))
                # Any error is an answer: the parent takes silence for a death, and would try again.
                except Exception as error:
                    _answer(answers, _described(error))
                else:
                    _answer(answers, {})


def _answer(answers: Any, what: dict[str, Any]) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def _described(error: Exception) -> dict[str, Any]:
    if isinstance(error, AxcoreError):
        return {"what": error.what, "where": error.where, "hint": error.hint}
    return {"what": f"{type(error).__name__}: {error}", "where": None, "hint": None}


if __name__ == "__main__":
    main()
