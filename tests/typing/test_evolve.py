"""What mypy makes of configs: misspelt and mistyped fields are found before anything runs."""

import pathlib
import re

import pytest
from mypy import api

SNIPPET = """\
from axcore.config import REQUIRED, Configurable, config, evolve
import axcore as ax
from axcore.layers import FeedForward
from axcore.models import llama2
from axcore.module import Module, Param


class Layer(Module):
    @config
    class Config(Module.Config):
        dim: int = REQUIRED
        rate: float = 0.0
        ffn: Module.Config = FeedForward.Config()

    def setup(self, cfg: Config) -> None:
        self.weight = Param((cfg.dim,), axes=("embed",))


cfg = Layer.Config(dim=3)
"""

CLAIMS = [
    ("evolve(cfg, dim=3)", None),
    ("evolve(cfg, dim=3, rate=1).ffn", None),
    ("evolve(cfg, dmi=3)", 'Unexpected keyword argument "dmi" for "evolve" of "Config"'),
    ('evolve(cfg, dim="3")', 'Argument "dim" to "evolve" of "Config" has incompatible type "str"'),
    ("evolve(cfg, dim=3).dmi", '"Config" has no attribute "dmi"'),
    ("Layer.Config()", None),
    ("Layer.Config(dim=3, ffn=FeedForward.Config(hidden_dim=4))", None),
    ("Layer.Config(dmi=3)", 'Unexpected keyword argument "dmi" for "Config"'),
    ('Layer.Config(dim="3")', 'Argument "dim" to "Config" has incompatible type "str"'),
    ("Layer.Config(3)", "Too many positional arguments"),
    ("cfg.dmi", '"Config" has no attribute "dmi"'),
    ("reveal_type(cfg.dim)", 'Revealed type is "int"'),
    ("reveal_type(Layer(cfg).weight)", 'basearray.Array"'),
    ("reveal_type(evolve(cfg, dim=4))", 'Revealed type is "snippet.Layer.Config"'),
    ("cfg.dim = 4", 'Property "dim" defined in "Config" is read-only'),
    ("reveal_type(cfg.build())", 'Revealed type is "snippet.Layer"'),
    ("reveal_type(FeedForward.Config().build())", 'transformer.FeedForward"'),
    ("reveal_type(cfg.ffn.build())", 'Revealed type is "axcore.module.module.Module"'),
    ("reveal_type(Layer(cfg).config.rate)", 'Revealed type is "float"'),
    ("Layer(cfg).wieght", '"Layer" has no attribute "wieght"; maybe "weight"?'),
    ("Layer(cfg).config.dmi", '"Config" has no attribute "dmi"'),
    ('reveal_type(ax.experiment("tiny").build().run("x"))', 'loop.TrainResult"'),
    ('reveal_type(llama2("toy").build())', 'causal_lm.CausalLM"'),
    ("reveal_type(ax.functional(FeedForward.Config().build(), {}))", "Array, axcore.module.out"),
    ('ax.load_run("runs/tiny").metric', 'maybe "metrics"?'),
    ("ax.load_runs", 'Module has no attribute "load_runs"; maybe "load_run"?'),
]


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Runs mypy once on all claims, one a line, and returns what it says about each line."""
    root = pathlib.Path(__file__).parents[2]
    file = tmp_path_factory.mktemp("typing") / "snippet.py"
    file.write_text(SNIPPET + "\n".join(claim for claim, _ in CLAIMS) + "\n")
    options = ["--config-file", str(root / "pyproject.toml"), "--no-error-summary"]
    out, error, _ = api.run([*options, "--cache-dir", str(root / ".mypy_cache"), str(file)])
    assert not error
    first = SNIPPET.count("\n") + 1
    said: dict[int, str] = {}
    for line in out.splitlines():
        if match := re.match(r".*snippet\.py:(\d+): (.*)", line):
            index = int(match[1]) - first
            said[index] = said.get(index, "") + match[2] + "\n"
    return said


@pytest.mark.slow
def test_mypy_finds_wrong_fields_and_accepts_right_ones(complaints: dict[int, str]) -> None:
    wrong = {
        claim: said or "mypy accepted it"
        for index, (claim, expected) in enumerate(CLAIMS)
        for said in [complaints.get(index, "")]
        if ((expected not in said) if expected else said)
    }
    assert wrong == {}
