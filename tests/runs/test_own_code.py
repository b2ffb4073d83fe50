"""A run of a config with classes of one's own is opened again, by anybody who may."""

import importlib
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import optax
import pytest
from quick_flags import quick_environment

import axcore as ax
from axcore.config import Configurable, config, is_trusted, to_json, trusting
from axcore.errors import CheckpointError, ConfigError
from axcore.runs.own_code import read_run_config
from axcore.trainer.run_directory.code import RunCode, definitions_of, find_code, package_digest
from axcore.trainer.run_directory.origin import read_origin, renew_code, write_origin

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
def test_resuming_with_changed_code_says_so_and_keeps_the_code_before(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    cwd, run = tmp_path / "copy", tmp_path / "copy" / "run"
    (cwd / "trained").unlink()
    longer = 'cfg = ax.update_config(cfg, {"max_steps": 3, "data.source.folder": "texts"})'
    script = SCRIPT.replace('cfg = ax.update_config(cfg, {"data.source.folder": "texts"})', longer)
    (cwd / "squared.py").write_text(script.replace("self.down(", "2 * self.down("))
    done = command("squared.py", cwd=cwd, state=cwd / "state")
    assert done.returncode == 0, done.stderr
    assert "the run resumes from step 2 with other code than before" in done.stderr
    assert "-        return self.down(square(self.up(x)))\n" in done.stderr
    assert "+        return 2 * self.down(square(self.up(x)))\n" in done.stderr
    lines = (run / "run_history.jsonl").read_text().splitlines()
    first, second = map(json.loads, lines)
    assert (first["step"], second["step"]) == (0, 2)
    kept = run / "earlier_code" / first["code"] / "squared.py"
    assert kept.read_text() == (folder / "run" / "code" / "squared.py").read_text()
    words = ("-m", "axcore", "evaluate", "run", "--step", "2", "--json")
    done = command(*words, cwd=cwd, state=cwd / "state")
    assert f"step 2 was trained with the code in run/earlier_code/{first['code']}" in done.stderr


@pytest.mark.slow
def test_changed_code_is_found_by_its_digest(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "run")
    (tmp_path / "run" / "code" / "helper.py").write_text("import os\n")
    with pytest.raises(CheckpointError, match=r"helper\.py is not what it was when the run began"):
        ax.load_run(tmp_path / "run", trust_code=True)


def test_code_of_a_start_that_fails_to_resume_leaves_that_of_the_run(tmp_path: Path) -> None:
    before, now = RunCode(files={"m.py": "a = 1\n"}), RunCode(files={"m.py": "a = 2\n"})
    write_origin(tmp_path, Configurable.Config(), before)
    write_origin(tmp_path, Configurable.Config(), now)
    assert (tmp_path / "code/m.py").read_text() == "a = 1\n"
    change = renew_code(tmp_path, now)
    assert change.splitlines()[:5] == [
        "--- m.py before",
        "+++ m.py now",
        "@@ -1 +1 @@",
        "-a = 1",
        "+a = 2",
    ]
    assert (tmp_path / "code/m.py").read_text() == "a = 2\n"
    (kept,) = (tmp_path / "earlier_code").glob("*/m.py")
    assert kept.read_text() == "a = 1\n"
    assert read_origin(tmp_path)["code"]["files"].keys() == {"m.py"}
    assert renew_code(tmp_path, now) == ""


def test_a_run_opened_where_other_code_is_imported_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "scales_by.py"
    source = (
        "from axcore.config import Configurable, config\nclass Scaled(Configurable):\n"
        "    @config\n    class Config(Configurable.Config):\n        by: int = 2\n"
    )
    file.write_text(source)
    cfg = importlib.import_module("scales_by").Scaled.Config()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text(to_json(cfg))
    write_origin(tmp_path / "run", cfg, find_code(cfg))
    origin = read_origin(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_run_config(tmp_path / "run", origin, trust_code=True) == cfg
    file.write_text(source.replace("= 2", "= 3"))
    with pytest.warns(
        UserWarning, match=r"other code than is imported here[^$]*-        by: int = 2"
    ):
        read_run_config(tmp_path / "run", origin, trust_code=True)


def test_modules_of_relative_imports_are_part_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    files = {
        "pack/__init__.py": "",
        "pack/parts/__init__.py": "",
        "pack/parts/shape.py": "from axcore.config import Configurable\nfrom . import near\n"
        "from ..far import x\nclass Shape(Configurable): pass\n",
        "pack/parts/near.py": "",
        "pack/far.py": "x = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    cfg = importlib.import_module("pack.parts.shape").Shape.Config()
    assert find_code(cfg).files == files


def test_a_package_that_the_config_names_is_recorded_with_version_and_digest() -> None:
    assert find_code(ax.experiment("tiny")).packages == {}  # of axcore the history says it
    (found,) = find_code(Held.Config(fn=optax.sgd)).packages.items()
    assert found == ("optax", package_digest("optax"))
    assert found[1].startswith(f"{optax.__version__} ")


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
