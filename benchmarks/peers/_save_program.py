"""Runs a module, and saves the text and temporaries of the largest program that it compiles.

    PYTHON _save_program.py FOLDER MODULE ARGUMENTS...

It runs in a peer's environment, and so imports nothing of axcore.
"""

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import jax


def saving(folder: Path) -> Any:
    """Return `Lowered.compile`, which saves a program that is larger than those before."""
    compile_lowered = jax.stages.Lowered.compile

    def compile_and_save(lowered: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = compile_lowered(lowered, *args, **kwargs)
        text, path = compiled.as_text(), folder / "program.txt"
        if not path.exists() or len(text) > path.stat().st_size:
            path.write_text(text, encoding="utf-8")
            memory = compiled.memory_analysis()
            about = {"temporary_bytes": int(memory.temp_size_in_bytes), "jax": jax.__version__}
            (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
        return compiled

    return compile_and_save


if __name__ == "__main__":
    jax.stages.Lowered.compile = saving(Path(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
