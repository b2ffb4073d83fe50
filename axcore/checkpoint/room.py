"""How much room a storage has, and how much a step needs, in words."""

from axcore.checkpoint.storage import StepStorage


def free_bytes(steps: StepStorage) -> int | None:
    """Returns how much can be written; None where that is not known."""
    try:
        return steps.free_bytes()
    except OSError:
        return None


def describe_room(free: int | None, num_bytes: int) -> str:
    """Returns what a step needs and what there is."""
    room = "an unknown number" if free is None else _megabytes(free)
    return f"about {_megabytes(num_bytes)} needed, {room} free"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
