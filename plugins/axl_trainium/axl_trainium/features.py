"""What axl-trainium adds to any model, for `axcore loc` to measure."""

from axcore.complexity import Trace


def runs_on_trainium(trace: Trace) -> str | None:
    """Return None where every kernel was chosen for a Trainium chip, else why not."""
    if not trace.kernels:
        return "no kernel was chosen"
    family = trace.hardware.family
    return None if family == "trainium" else f"it was traced for {family}"
