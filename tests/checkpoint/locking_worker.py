"""Takes a lock without jax, says so or who has it, and holds it until its input ends.

Arguments: the lock file. It starts when a first line comes.
"""

import sys
from pathlib import Path
from types import ModuleType

package = ModuleType("axcore.checkpoint")  # its own `__init__` would import jax, eight times over
package.__path__ = [str(Path(__file__).parents[2] / "axcore/checkpoint")]
sys.modules["axcore.checkpoint"] = package

from axcore.checkpoint.lock import FileLock  # noqa: E402
from axcore.errors import CheckpointError  # noqa: E402

print("ready", flush=True)
sys.stdin.readline()
try:
    lock = FileLock(Path(sys.argv[1]), doing="saving")
    print("won", flush=True)
    sys.stdin.read()
except CheckpointError as error:
    print(error.what, flush=True)
