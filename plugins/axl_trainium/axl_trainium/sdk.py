"""NKI as kernels import it: AWS's SDK where it is installed, else the simulator.

Kernel files say `from axl_trainium.sdk import nisa, nki, nl` and are the same for both.
"""

from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Any


def is_installed() -> bool:
    """Return whether AWS's SDK is; a package of that name without instructions is not it.

    Imports nothing: a package that only holds the name may say so by an error.
    """
    package = find_spec("nki")
    if package is None or package.submodule_search_locations is None:
        return False
    return PathFinder.find_spec("nki.isa", package.submodule_search_locations) is not None


IS_SDK = is_installed()

nki: Any
nisa: Any
nl: Any

if IS_SDK:
    import nki
    import nki.isa as nisa
    import nki.language as nl
else:
    from axl_trainium import simulator as nki
    from axl_trainium.simulator import isa as nisa
    from axl_trainium.simulator import language as nl

__all__ = ["IS_SDK", "is_installed", "nisa", "nki", "nl"]
