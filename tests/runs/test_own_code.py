"""A run of a config with classes of one's own is opened again, by anybody who may."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from quick_flags import quick_environment

import axcore as ax
from axcore.config import Configurable, config, is_trusted, trusting
from axcore.errors import CheckpointError, ConfigError
from axcore.trainer.run_directory.code import RunCode, find_code
from axcore.trainer.run_directory.definitions import definitions_of

SCRIPT = """
import axcore as ax
from axcore.layers import FeedForward
from axcore.testing.tiny import small_experiment
from pathlib import Path
from helper import square

raise_if_run_again = open("trained", "x")


class Squared(FeedForward):
    def forward(self, x):
        return self.down(square(self.up(x)))


cfg = ax.replace_config(small_experiment(Path("texts")), FeedForward, Squared.Config())
cfg = ax.update_config(cfg, {"data.source.folder": "texts"})
print(cfg.build().run("run", quiet=True).validation["loss"])
"""
HELPER = "def square(x):\n    return x * x\n"


def command(*words: str, cwd: Path, state: Path) -> subprocess.CompletedProcess[str]:
    environment = {**quick_environment(), "XDG_STATE_HOME": str(state)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a script that was run, its run, and the user's key in `state`."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "squared.py").write_text(SCRIPT)
    (folder / "helper.py").write_text(HELPER)
    done = command("squared.py", cwd=folder, state=folder / "state")
    assert done.returncode == 0, done.stderr
    (folder / "loss").write_text(done.stdout)
    return folder


@pytest.mark.slow
def test_the_run_of_a_script_is_opened_from_anywhere_without_the_script(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder / "run", tmp_path / "moved")
    words = ("-m", "axcore", "evaluate", "moved", "--json")
    done = command(*words, cwd=tmp_path, state=folder / "state")
    assert done.returncode == 0, done.stderr
    assert f'"loss": {(folder / "loss").read_text().strip()[:6]}' in done.stdout


@pytest.mark.slow
def test_code_of_somebody_elses_run_is_run_only_where_it_is_trusted(
    folder: Path, tmp_path: Path
) -> None:
    words = ("-m", "axcore", "generate", "run", "--max-tokens", "2", "--prompt", "The")
    done = command(*words, cwd=folder, state=tmp_path)
    assert done.returncode == CheckpointError.exit_code
    assert "opening the run would run code that came with it: code/" in done.stderr
    done = command(*words, "--trust-code", cwd=folder, state=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The")


@pytest.mark.slow
def test_changed_code_is_found_by_its_digest(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "run" / "code" / "helper.py").write_text("import os\n")
    with pytest.raises(CheckpointError, match=r"helper\.py is not what it was when the run began"):
        ax.load_run(tmp_path / "run", trust_code=True)


class Held(Configurable):
    @config
    class Config(Configurable.Config):
        fn: Callable[..., object] = ax.update_config


@pytest.mark.slow
def test_functions_that_config_files_may_not_name_are_recorded_too() -> None:
    assert find_code(Configurable.Config()) == RunCode()
    code = find_code(Held.Config())
    assert code.modules == ("axcore", __name__)
    assert not is_trusted("axcore", functions=True)
    with trusting(["axcore"]):
        assert is_trusted("axcore", functions=True)
    assert not is_trusted("axcore", functions=True)
    assert is_trusted("axcore")


def test_definitions_hold_what_a_class_needs_and_nothing_that_trains() -> None:
    source = (
        "import os\nimport jax\nPOWER = 2\nhidden = 1\nprint(POWER)\n"
        "@decorated\nclass A(B):\n    def f(self):\n"
        "        hidden = g(POWER)\n        return hidden\n"
        "def g(x):\n    return jax.nn.relu(x)\n"
        "def decorated(cls):\n    return cls\nclass B: pass\nresult = A().f()\n"
    )
    kept = definitions_of(source, {"A"})
    assert [line for line in source.splitlines() if line and line not in kept.splitlines()] == [
        "import os",
        "hidden = 1",
        "print(POWER)",
        "result = A().f()",
    ]


@pytest.mark.slow
def test_what_could_not_be_found_again_is_refused_before_training() -> None:
    class Local(Configurable):
        pass

    with pytest.raises(ConfigError, match=r"Local\.Config is defined in .*, where nothing"):
        find_code(Local.Config())
    program = (
        "import axcore as ax\nfrom axcore.trainer.run_directory.code import find_code\n"
        "class Mine(ax.Module): pass\nfind_code(Mine.Config())"
    )
    done = command("-c", program, cwd=Path.cwd(), state=Path(os.devnull))
    assert "Mine.Config is defined in an interactive session" in done.stderr
