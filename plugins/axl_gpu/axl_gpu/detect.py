"""Recognising NVIDIA GPUs by the name that their driver gives them."""

_GENERATIONS = {
    "NVIDIA A100-SXM4-40GB": "a100-40gb",
    "NVIDIA A100-SXM4-80GB": "a100",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
}


def detect(platform: str, device_kind: str) -> str | None:
    """Returns the generation of a GPU, or None for one whose figures are not known.

    PCIe cards and slices of a GPU have other figures than the SXM module of the same name, so
    only whole names are taken.
    """
    return _GENERATIONS.get(device_kind) if platform in ("gpu", "cuda") else None
