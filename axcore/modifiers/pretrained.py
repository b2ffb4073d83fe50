"""`Pretrained`: begins a run with published weights."""

from typing import Any

from axcore.config import REQUIRED, config, evolve
from axcore.interop import HuggingFace
from axcore.plugins import Hardware


@config
class Pretrained:
    """Begins a run with the weights of a published model.

    Args:
        path: The folder that holds it.
        fresh: Globs of arrays of the state that are not read, but begin as in a new model.
        grows_vocabulary: Whether the model may have more tokens than the published one.
    """

    path: str = REQUIRED
    fresh: tuple[str, ...] = ()
    grows_vocabulary: bool = False

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns a trainer's config that begins with these weights."""
        weights = HuggingFace.Config(
            path=self.path, fresh=self.fresh, grows_vocabulary=self.grows_vocabulary
        )
        return evolve(cfg, init_from=weights)
