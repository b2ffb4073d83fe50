"""What layers that wrap another layer have in common."""

from typing import Any

from axcore.config import find_config
from axcore.errors import ConfigError


def sees_row_offsets(node: Any) -> bool:
    """Return whether a config's layer would notice a number added to a full row of logits.

    Softmax alone does not. The config of a layer that does says so: `SEES_ROW_OFFSETS = True`.
    """
    return getattr(node, "SEES_ROW_OFFSETS", False) is True


def refuse_second(kind: type, inside: Any) -> None:
    """Check that a layer does not wrap another of its kind.

    Args:
        kind: The layer's class.
        inside: The config of what it wraps.

    Raises:
        ConfigError: There is one of that kind inside.
    """
    found = find_config(inside, kind)
    if found:
        at = f", at {found[0].path}" if found[0].path else ""
        raise ConfigError(
            f"{kind.__name__} wraps another {kind.__name__}{at}",
            hint="apply it once",
        )
