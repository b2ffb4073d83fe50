"""Modifiers that begin a run with weights from elsewhere."""

from typing import Any, ClassVar

from axcore.config import REQUIRED, config, evolve, field_names
from axcore.interop import HuggingFace, WeightSource
from axcore.plugins import Hardware


@config
class InitialWeights:
    """Begin a run with the weights of a source; edits of them are further modifiers.

    Args:
        path: Where the source is.
        read: Globs of the arrays of the state that are read; others are randomly initialized.
        fresh: Globs of arrays of the state that are not read, but are randomly initialized.
        unused: Globs of arrays of the source's model that the run's model does not have.
        may_differ: Globs of the model's config that may differ from the source's.
        adapters: A folder of adapters that are read too.
    """

    source: ClassVar[type[WeightSource]]

    path: str = REQUIRED
    read: tuple[str, ...] = ("**",)
    fresh: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    may_differ: tuple[str, ...] = ()
    adapters: str | None = None

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return a trainer's config that begins with these weights."""
        settings = {name: getattr(self, name) for name in field_names(self)}
        return evolve(cfg, init_from=self.source.Config(**settings))


@config
class Pretrained(InitialWeights):
    """Begin a run with the weights of a pretrained checkpoint.

    Edits of them are further modifiers, `grow_vocabulary` for one.

    Args:
        path: The folder that contains it.
        allow_unknown_fields: Whether fields of its `config.json` that could matter are ignored.
    """

    source: ClassVar[type[WeightSource]] = HuggingFace

    allow_unknown_fields: bool = False
