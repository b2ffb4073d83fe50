"""Layers that correct others, as adapters do: how what they learned leaves a run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from axcore.config import is_config, walk
from axcore.config.paths import format_path
from axcore.errors import ConfigError
from axcore.module import DType
from axcore.plugins import AdapterFormat, plugin_host


class CorrectionFormat(ABC):
    """Writes what corrections learned, or adds it to what they correct.

    The hook `adapter_formats` brings it for a layer that corrects its `base`.
    """

    @abstractmethod
    def write(
        self,
        folder: Path | str,
        cfg: Any,
        state: Any,
        *,
        trained: tuple[str, ...],
        dtype: DType | None,
        base: str | None,
        files: Mapping[str, bytes],
    ) -> str:
        """Writes the corrections alone into a new folder; returns what it has written.

        Args:
            folder: Where to write.
            cfg: The model's config.
            state: Its state.
            trained: Globs of the parameters that were trained.
            dtype: Of all tensors; each array's own where None.
            base: The published model that they correct.
            files: More files, by name.

        Raises:
            ConfigError: More was trained, or the format has no such corrections.
        """

    @abstractmethod
    def merged(self, cfg: Any, state: Any) -> tuple[Any, Any]:
        """Returns config and state of the model with every correction added to its base."""


def correction_format(cfg: Any) -> CorrectionFormat | None:
    """Returns the format of a model's corrections; None where it has none.

    Raises:
        ConfigError: No plugin says how one is exported, or they have different formats.
    """
    records = plugin_host().records(AdapterFormat)
    found: dict[AdapterFormat, str] = {}
    for path, node in walk(cfg):
        if is_config(getattr(node, "base", None)):
            record = next((one for one in records if type(node) is one.layer.resolve()), None)
            if record is None:
                raise ConfigError(
                    f"nothing installed says how a {type(node).__qualname__} is exported",
                    where=format_path(path),
                    hint="its plugin brings that by the hook adapter_formats",
                )
            found.setdefault(record, format_path(path))
    if len(found) > 1:
        shown = ", ".join(f"{path} by {record.name}" for record, path in found.items())
        raise ConfigError(f"corrections are exported in several formats: {shown}", where="model")
    for record in found:
        made: CorrectionFormat = record.format.resolve()()
        return made
    return None
