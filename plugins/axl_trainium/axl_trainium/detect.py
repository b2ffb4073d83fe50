"""Recognising Trainium by the kind that the Neuron runtime gives its devices."""

_PREFIXES = {"NC_v2": "trn1", "NC_v3": "trn2"}


def detect(platform: str, device_kind: str) -> str | None:
    """Returns the generation of a Neuron device, or None for one that is not described.

    Kinds are names of the core's version, with a letter after it where cores are joined. Not yet
    tried on a device.
    """
    if platform != "neuron":
        return None
    return next(
        (name for prefix, name in _PREFIXES.items() if device_kind.startswith(prefix)), None
    )
