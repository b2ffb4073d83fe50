"""What a report shows of a device's memory: what the compiled step needs, as training kept it."""

from pathlib import Path
from typing import Any

import attrs

from axcore.aot.memory_record import MEMORY_NAME
from axcore.aot.report.report import LargeBuffer, Memory
from axcore.config.json_files import read_json_file


def step_memory_facts(folder: Path) -> dict[str, Any] | None:
    """Returns what the step of a run's newest start needs; None where no start has kept it.

    Raises:
        ValueError: The file is damaged.
    """
    path = folder / MEMORY_NAME
    if not path.exists():
        return None
    try:
        found = read_json_file(path)
        largest = tuple(LargeBuffer(**one) for one in found.pop("largest"))
        return attrs.asdict(Memory(**found, largest=largest))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from error
