"""axcore: modular, hardware-agnostic training of large deep learning models on JAX.

`import axcore as ax` gives scripts what they need, and imports jax only when something that needs
it is asked for. `ax.config` is the decorator of config classes; take everything else that the
package of that name has from it: `from axcore.config import find_config`. See `docs/scripting.md`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from axcore.config import REQUIRED, config, evolve, replace_config, update_config

if TYPE_CHECKING:
    from axcore.data import ArrayData
    from axcore.experiments.named import experiment
    from axcore.interop import from_hugging_face, to_hugging_face
    from axcore.module import Module, Param
    from axcore.module.functional import functional
    from axcore.runs import Run, load_run
    from axcore.trainer import Trainer
    from axcore.trainer.resolve import resolve

__version__ = "0.1.0"

_LAZY = {
    "ArrayData": "axcore.data",
    "Module": "axcore.module",
    "Param": "axcore.module",
    "Run": "axcore.runs",
    "Trainer": "axcore.trainer",
    "experiment": "axcore.experiments.named",
    "from_hugging_face": "axcore.interop",
    "functional": "axcore.module.functional",
    "load_run": "axcore.runs",
    "resolve": "axcore.trainer.resolve",
    "to_hugging_face": "axcore.interop",
}
"""Where a name comes from that is imported when it is first asked for: with it comes jax."""

__all__ = [
    "REQUIRED",
    "ArrayData",
    "Module",
    "Param",
    "Run",
    "Trainer",
    "config",
    "evolve",
    "experiment",
    "from_hugging_face",
    "functional",
    "load_run",
    "replace_config",
    "resolve",
    "to_hugging_face",
    "update_config",
]


if not TYPE_CHECKING:  # which would take any name for one of the face

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module 'axcore' has no attribute {name!r}")
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
