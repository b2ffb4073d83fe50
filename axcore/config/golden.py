"""Golden files: a config's rendered text, kept with the tests so that each change shows."""

import difflib
import pathlib
from typing import Any

from axcore.config.render import render_config
from axcore.errors import ConfigError


def check_golden(cfg: Any, file: str | pathlib.Path, *, update: bool = False) -> None:
    """Check that a config still renders to the text in a golden file.

    Args:
        cfg: The config.
        file: The golden file.
        update: Writes the file instead of comparing with it.

    Raises:
        ConfigError: The file is missing or differs; the message holds the difference.
    """
    file, text = pathlib.Path(file), render_config(cfg)
    if update:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return
    if not file.exists():
        raise ConfigError(
            f"there is no golden file for {type(cfg).__qualname__}",
            where=str(file),
            hint=f"check_golden(cfg, {str(file)!r}, update=True), and read it before you commit it",
        )
    kept = file.read_text(encoding="utf-8")
    if kept != text:
        lines = difflib.unified_diff(
            kept.splitlines(), text.splitlines(), "golden", "now", lineterm="", n=0
        )
        raise ConfigError(
            f"{type(cfg).__qualname__} is not what its golden file says:\n" + "\n".join(lines),
            where=str(file),
            hint="if the change is intended, write the file again with update=True",
        )
