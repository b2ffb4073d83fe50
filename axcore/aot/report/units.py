"""Numbers as people read them."""

from collections.abc import Sequence

UNKNOWN = "unknown"

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def show_bytes(nbytes: float) -> str:
    """Returns `10.8 GiB`, with three digits that count.

    >>> show_bytes(11622099648)
    '10.8 GiB'
    """
    size = float(nbytes)
    unit = 0
    while abs(size) >= 1000 and unit < len(_BYTES) - 1:
        size /= 1024
        unit += 1
    return f"{size:.3g} {_BYTES[unit]}"


def show_seconds(seconds: float | None) -> str:
    """Returns `2.47 s`, `12.3 ms` or `unknown`.

    >>> show_seconds(0.0123)
    '12.3 ms'
    """
    if seconds is None:
        return UNKNOWN
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def show_count(number: float) -> str:
    """Returns `8.14e+14`, or a small number in full."""
    return f"{number:,.0f}" if number < 1e6 else f"{number:.3g}"


def without_unknown(
    header: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Returns a table without the columns in which no row has a figure."""
    kept = [at for at in range(len(header)) if not all(row[at] == UNKNOWN for row in rows)]
    return [header[at] for at in kept], [[row[at] for at in kept] for row in rows]


def no_times(target: str) -> str:
    """Returns the line in place of times where a target's figures are not known."""
    return f"no times: how fast {target} computes is not known"
