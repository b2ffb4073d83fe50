"""`goodput.json`: the ledger of a run directory, over all starts of its job. It loads no jax."""

import json
import os
import warnings
from pathlib import Path

from axcore.config.json_files import read_json_file
from axcore.resilience.ledger import Ledger

GOODPUT_NAME = "goodput.json"


def write_ledger(directory: Path, ledger: Ledger) -> None:
    """Writes the file; a reader, or the kill of this process, sees the old one or the new."""
    path = directory / GOODPUT_NAME
    draft = path.with_name(f"{path.name}.tmp")
    draft.write_text(json.dumps(ledger.as_dict()) + "\n", encoding="utf-8")
    os.replace(draft, path)


def read_ledger(directory: Path | str) -> Ledger | None:
    """Returns the ledger of a run; None where it has none, and with a warning if it is damaged."""
    path = Path(directory) / GOODPUT_NAME
    try:
        return Ledger.from_dict(read_json_file(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(f"{path} is damaged, so goodput starts at zero: {error}", stacklevel=2)
        return None
