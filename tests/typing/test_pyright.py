"""What pyright makes of configs, without a plugin.

By basedpyright, which is pyright with all that it needs in its wheel: pyright's own fetches itself
from the network when it first runs.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("basedpyright", reason="pip install basedpyright")

PRELUDE = """\
import axcore as ax
from axcore.layers import Attention, FeedForward
from axcore.models import llama2


class Layer(ax.Module):
    @ax.config
    class Config(ax.Module.Config["Layer"]):
        dim: int = ax.REQUIRED


"""

CLAIMS = [
    ("reveal_type(Attention.Config(num_heads=2).build())", 'is "Attention"'),
    ("reveal_type(Layer.Config(dim=3).build())", 'is "Layer"'),
    ("reveal_type(Layer.Config(dim=3).dim)", 'is "int"'),
    ("reveal_type(Layer(Layer.Config(dim=3)).config.dim)", 'is "int"'),
    ("Layer(Layer.Config(dim=3)).config.dmi", 'Cannot access attribute "dmi"'),
    ("Layer(Layer.Config(dim=3)).dmi", 'Cannot access attribute "dmi"'),
    ('reveal_type(llama2("toy").build())', 'is "CausalLM"'),
    ("reveal_type(llama2('toy').decoder.build())", 'is "Module"'),
    ('reveal_type(ax.experiment("tiny").build().run("x"))', 'is "TrainResult"'),
    ("reveal_type(ax.functional(FeedForward.Config().build(), {}))", 'is "tuple[Array, Outputs]"'),
    ("Layer.Config(dmi=3)", 'No parameter named "dmi"'),
    ('Layer.Config(dim="3")', 'is not assignable to "int"'),
    ("Layer.Config(dim=3).dmi", 'Cannot access attribute "dmi"'),
    ("ax.load_runs", '"load_runs" is not a known attribute'),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Runs the checker once on all claims, one a line; returns what it says about each line."""
    folder = tmp_path_factory.mktemp("pyright")
    (folder / "snippet.py").write_text(PRELUDE + "\n".join(claim for claim, _ in CLAIMS) + "\n")
    settings = {
        "typeCheckingMode": "standard",
        "reportUnusedExpression": False,
        "extraPaths": [str(Path(__file__).parents[2])],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(folder)]
    done = subprocess.run(
        [*command, "--pythonpath", sys.executable], capture_output=True, text=True, check=False
    )
    first = PRELUDE.count("\n")
    found: dict[int, str] = {}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        line = one["range"]["start"]["line"] - first
        found[line] = found.get(line, "") + one["message"] + "\n"
    return found


@pytest.mark.parametrize("index", range(len(CLAIMS)), ids=[claim for claim, _ in CLAIMS])
def test_pyright_knows_what_configs_build(index: int, said: dict[int, str]) -> None:
    assert CLAIMS[index][1] in said.get(index, "")
    assert min(said) >= 0, said
