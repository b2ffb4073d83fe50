"""Recognising TPUs by the kind that JAX gives their devices."""

_GENERATIONS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "7x",
}


def detect(platform: str, device_kind: str) -> str | None:
    """Returns the generation of a TPU device, or None for one that is not described."""
    return _GENERATIONS.get(device_kind) if platform == "tpu" else None
