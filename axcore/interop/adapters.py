"""Adapters: how layers that correct a frozen base, as LoRA does, are read and exported."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs

from axcore.config import REQUIRED, evolve, is_config, render_config, walk
from axcore.config.define import field_defaults
from axcore.config.paths import format_path
from axcore.errors import CheckpointError, ConfigError
from axcore.interop.array_source import ArraySource, JoinedSources
from axcore.interop.canonical import TRAINING_ONLY, base_config
from axcore.interop.weight_map import listed
from axcore.module import DType
from axcore.plugins import AdapterFormat as AdapterFormatRecord
from axcore.plugins import plugin_host


class AdapterFormat(ABC):
    """A file format of adapters: reads and writes them, and merges them into their base.

    The hook `adapter_formats` registers one for a layer that adapts its `base`.
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
        """Write the adapters alone into a new folder; return what was written.

        Args:
            folder: Where to write.
            cfg: The model's config.
            state: Its state.
            trained: Globs of the parameters that were trained.
            dtype: Of all tensors; each array's own where None.
            base: The pretrained checkpoint that they adapt.
            files: More files, by name.

        Raises:
            ConfigError: More was trained, or the format has no such adapters.
        """

    @abstractmethod
    def is_in(self, folder: Path) -> bool:
        """Whether a folder contains adapters in this format."""

    @abstractmethod
    def base(self, folder: Path) -> str | None:
        """Return the pretrained checkpoint that a folder's adapters are for, if they name one."""

    @abstractmethod
    def read(self, folder: Path, cfg: Any) -> "AdapterCheckpoint":
        """Return the adapters in a folder; read no numbers.

        Args:
            folder: Contains them.
            cfg: The base config, without adapters.

        Raises:
            ConfigError: No layer here does what they do.
            CheckpointError: They are for another model, or a file is damaged.
        """

    @abstractmethod
    def merged(self, cfg: Any, state: Any) -> tuple[Any, Any]:
        """Return config and state of the model with every adapter merged into its base."""


@attrs.frozen
class AdapterCheckpoint:
    """Adapters that were read.

    Args:
        config: The config of the model with them.
        arrays: Their arrays.
        trained: Globs of the parameters that are trained.
        dtypes: The dtypes that they are stored in.
        relative_to: From the arrays of the base to those of the adapters, where these depend on it.
        replaced: What the folder changes in the arrays of that model, where it does; called with
            them, it returns them as changed.
    """

    config: Any
    arrays: ArraySource
    trained: tuple[str, ...]
    dtypes: frozenset[str]
    relative_to: Callable[[ArraySource], ArraySource] | None = None
    replaced: "_ChangedBase | None" = None

    def check_is_alone(self, where: str, hint: str) -> None:
        """Check that adapters are all that the folder changes in a model.

        Raises:
            ConfigError: It changes weights of the base too, which are named.
        """
        if self.replaced is not None:
            raise ConfigError(
                "the folder of adapters changes weights of their base too:\n"
                + listed(self.replaced.names),
                where=where,
                hint=hint,
            )


class _ChangedBase(Protocol):
    """Changes of the base's own arrays."""

    @property
    def names(self) -> list[str]:
        """What the pretrained checkpoint calls the arrays that are changed."""

    def __call__(self, source: ArraySource) -> ArraySource:
        """Return the arrays as changed."""


def find_adapter_format(folder: Path | str) -> AdapterFormat | None:
    """Return the format of the adapters in a folder; None where it contains none."""
    for record in plugin_host().records(AdapterFormatRecord):
        made: AdapterFormat = record.call("format", returns=object)
        if made.is_in(Path(folder).expanduser()):
            return made
    return None


def adapter_format(cfg: Any) -> AdapterFormat | None:
    """Return the format of a model's adapters; None where it has none.

    Raises:
        ConfigError: No plugin says how one is exported, or they have different formats.
    """
    records = plugin_host().records(AdapterFormatRecord)
    found: dict[AdapterFormatRecord, str] = {}
    for path, node in walk(cfg):
        # By a `base` that is a config: what adapts a layer wraps it.
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
        raise ConfigError(f"adapters are exported in several formats: {shown}", where="model")
    # One at most, as several would have raised.
    made: AdapterFormat | None = None
    for record in found:
        made = record.call("format", returns=object)
    return made


def read_adapters(folder: Path | str, cfg: Any) -> AdapterCheckpoint:
    """Return the adapters of a folder, for a model whose own are left out.

    Raises:
        CheckpointError: The folder contains none, or those of another model.
        ConfigError: No layer here does what they do.
    """
    found = find_adapter_format(folder)
    if found is None:
        known = ", ".join(record.name for record in plugin_host().records(AdapterFormatRecord))
        raise CheckpointError(
            f"the folder contains no adapters in a format that is known: {known}",
            where=str(folder),
            hint="name the folder that adapters were saved into",
        )
    return found.read(Path(folder).expanduser(), base_config(cfg))


def check_base_is_unchanged(init_from: Any, cfg: Any, *, where: str, hint: str) -> None:
    """Check that a run's adapters are all that makes its model another than its base.

    Args:
        init_from: The source that the run began with.
        cfg: The config of the run's model.
        where: Of the error.
        hint: Of the error.

    Raises:
        ConfigError: The run began with a folder of adapters that changes weights of their base.
    """
    folder = getattr(init_from, "adapters", None)
    if folder is None:
        # Nothing is known about a folder that is gone, and a run must still be servable.
        return
    if not Path(folder).expanduser().is_dir():
        warnings.warn(
            f"{folder}, whose adapters the run began with, is not there: whether it changed "
            "weights of their base too is not known",
            stacklevel=3,
        )
        return
    read_adapters(folder, cfg).check_is_alone(where, hint)


def join_adapters(source: ArraySource, folder: str | None, models: tuple[Any, Any]) -> ArraySource:
    """Return the arrays of a source and of the adapters in a folder.

    Args:
        source: Contains the arrays of a model without adapters.
        folder: Contains adapters; nothing is added where it is None.
        models: The config of the source's model, and of the one that begins, which must have the
            adapters that the folder describes.

    Raises:
        ConfigError: It does not, or the source has adapters already.
    """
    if folder is None:
        return source
    found = read_adapters(folder, models[0])
    # Both would have a say in the same array, and which one wins would depend on order.
    doubled = sorted(source.shapes.keys() & found.arrays.shapes.keys())
    if doubled:
        raise ConfigError(
            f"the source has adapters of its own: {doubled[0]} for one",
            where="init_from.adapters",
            hint="merge these first: axcore convert runs/NAME hf:FOLDER --merged",
        )
    saved, wanted = (_kinds(cfg) for cfg in (found.config, models[1]))
    if saved != wanted:
        changes = [f"- {text}" for text in saved - wanted] + [
            f"+ {text}" for text in wanted - saved
        ]
        raise ConfigError(
            "the model's adapters differ from the folder's (-: the folder, +: the "
            "model)\n" + "\n".join(changes),
            where="init_from.adapters",
            hint="write the folder's values: --modify 'lora(rank=..., alpha=..., targets=...)'",
        )
    if found.replaced is not None:
        source = found.replaced(source)
    # Only now: what they are relative to may itself be replaced by the folder.
    arrays = found.arrays if found.relative_to is None else found.relative_to(source)
    return JoinedSources((source, arrays))


def _kinds(cfg: Any) -> set[str]:
    """Return the settings of a model's adapters, each kind once."""
    nodes = (node for _, node in walk(cfg) if is_config(getattr(node, "base", None)))
    # Without what is filled or only trains, which
    # differs between a folder and a model for no reason.
    return {render_config(evolve(node, base=REQUIRED, **_defaults(node))).strip() for node in nodes}


def _defaults(node: Any) -> dict[str, Any]:
    """Return the defaults of what only training needs, and of what a parent fills."""
    defaults = field_defaults(type(node))
    return {name: value for name, value in defaults.items() if name in TRAINING_ONLY}
