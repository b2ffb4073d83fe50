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
    """

    path: str = REQUIRED

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns a trainer's config that begins with these weights."""
        return evolve(cfg, init_from=HuggingFace.Config(path=self.path))
