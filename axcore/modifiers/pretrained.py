"""`Pretrained`: begins a run with published weights."""

from typing import Any

from axcore.config import REQUIRED, config, evolve
from axcore.interop import HuggingFace
from axcore.plugins import Hardware


@config
class Pretrained:
    """Begins a run with the weights of a published model.

    Edits of them are further modifiers, `grow_vocabulary` for one.

    Args:
        path: The folder that holds it.
        read: Globs of the arrays of the state that are read; others begin as in a new model.
        fresh: Globs of arrays of the state that are not read, but begin as in a new model.
        unused: Globs of arrays of the published model that the run's model does not have.
        may_differ: Globs of the model's config that may differ from the published one's.
        adapters: A folder of adapters that are read too.
    """

    path: str = REQUIRED
    read: tuple[str, ...] = ("**",)
    fresh: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    may_differ: tuple[str, ...] = ()
    adapters: str | None = None

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns a trainer's config that begins with these weights."""
        weights = HuggingFace.Config(
            path=self.path,
            read=self.read,
            fresh=self.fresh,
            unused=self.unused,
            may_differ=self.may_differ,
            adapters=self.adapters,
        )
        return evolve(cfg, init_from=weights)
