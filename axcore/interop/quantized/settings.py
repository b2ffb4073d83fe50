"""Where a checkpoint says how its weights are quantized."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from axcore.config.json_files import read_json
from axcore.errors import CheckpointError

QUANTIZATION = "quantization_config"
"""The field of `config.json`."""
_OLDER = "compression_config"
"""What compressed-tensors called it before."""
_MODELOPT = "hf_quant_config.json"
"""Where ModelOpt has it instead."""


def with_quantization(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a `config.json` with those of quantized weights at one place.

    Args:
        folder: Contains the model.
        values: What its `config.json` says.

    Raises:
        CheckpointError: A file next to it is damaged.
    """
    found = values.get(QUANTIZATION) or values.get(_OLDER)
    if not found:  # a model of more than text may have them with the fields of text
        nested = values.get("text_config")
        found = nested.get(QUANTIZATION) if isinstance(nested, dict) else None
    if not found and (folder / _MODELOPT).is_file():
        content = read_json(folder / _MODELOPT, _MODELOPT, error=CheckpointError)
        found = {"quant_method": "modelopt", **content.get("quantization", {})}
    rest = {name: value for name, value in values.items() if name not in (QUANTIZATION, _OLDER)}
    if not found:
        return rest
    if not isinstance(found, Mapping):
        raise CheckpointError(
            f"{QUANTIZATION} is {found!r}, and not an object",
            where=str(folder / "config.json"),
            hint="compare it with the file that was published",
        )
    return {**rest, QUANTIZATION: found}
