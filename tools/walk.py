"""List the files that a reader enters who follows one call through axcore, with their functions.

    python tools/walk.py attention     # the call of an attention layer to the kernel of an H100
    python tools/walk.py weights       # a pretrained toy Llama in a folder to its parameters

A file counts where a function of it runs, in a process that has loaded its plugins and has run
nothing else. What runs because a module is imported does not count.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType

from axcore.plugins import plugin_host

ROOT = Path(__file__).parents[1]
FOLDERS = ("axcore", "plugins")

Entered = dict[str, Counter[str]]
"""How often each function ran, by file."""


def main(arguments: Sequence[str]) -> None:
    """Print the files of a walk, and the functions that ran most in each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("walk", choices=list(WALKS))
    walk = WALKS[parser.parse_args(arguments).walk]
    plugin_host()
    entered = walk()
    for file, functions in sorted(entered.items()):
        most = ", ".join(name for name, _ in functions.most_common(4))
        print(f"{sum(functions.values()):7,} {file}: {most}")
    print(f"{sum(map(Counter.total, entered.values())):7,} calls in {len(entered)} files")


def walk_attention() -> Entered:
    """Trace the layer that calls the attention op, for a chip that need not be there."""
    import jax
    import jax.numpy as jnp

    from axcore.hardware import Hardware
    from axcore.layers import DotProductAttention, TokenInfo
    from axcore.ops import KernelPolicy, use_policy

    layer = DotProductAttention.Config(num_heads=2).build()
    heads = jax.ShapeDtypeStruct((2, 512, 2, 128), jnp.bfloat16)
    info = TokenInfo(positions=jnp.zeros((2, 512), jnp.int32))
    with use_policy(KernelPolicy(hardware=Hardware.parse("gpu-h100-8"))), recorded() as entered:
        jax.eval_shape(lambda q, k, v: layer.forward(q, k, v, info), heads, heads, heads)
    return entered


def walk_weights() -> Entered:
    """Read a folder as Hugging Face publishes it, which another process has written."""
    with tempfile.TemporaryDirectory() as folder:
        write = (
            "import sys, jax\n"
            "from axcore.interop import to_hugging_face\n"
            "from axcore.models import llama2\n"
            "cfg = llama2('toy')\n"
            "to_hugging_face(sys.argv[1], cfg, cfg.build().init(jax.random.key(0)))\n"
        )
        subprocess.run([sys.executable, "-c", write, f"{folder}/llama"], check=True)
        from axcore.interop import from_hugging_face

        with recorded() as entered:
            from_hugging_face(f"{folder}/llama")
    return entered


WALKS: dict[str, Callable[[], Entered]] = {"attention": walk_attention, "weights": walk_weights}


@contextmanager
def recorded() -> Iterator[Entered]:
    """Record the functions of axcore and its plugins that are called, in every thread."""
    entered: Entered = defaultdict(Counter)
    importing = Counter[int]()

    def see(frame: FrameType, event: str, argument: object) -> None:
        code, thread = frame.f_code, threading.get_ident()
        if code.co_name == "_find_and_load" and "importlib" in code.co_filename:
            importing[thread] += (event == "call") - (event == "return")
        # Code of modules and of classes is not optimized: it runs when they are imported.
        elif event == "call" and code.co_flags & CO_OPTIMIZED and not importing[thread]:
            file = Path(code.co_filename)
            if file.is_relative_to(ROOT) and file.relative_to(ROOT).parts[0] in FOLDERS:
                entered[str(file.relative_to(ROOT))][code.co_qualname] += 1

    threading.setprofile(see)
    sys.setprofile(see)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    main(sys.argv[1:])
