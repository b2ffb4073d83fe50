"""A store that processes build is the same store, whoever of them is killed."""

import subprocess
import sys
import time

import pytest
from dying_source import DyingLines
from stores import built, contents

from axcore.config import evolve, field_names, to_json
from axcore.data.store import build as build_module
from axcore.errors import DataError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_parts", "worth_a_process")]


@pytest.fixture
def worth_a_process(monkeypatch):
    monkeypatch.setattr(build_module, "_BYTES_A_PROCESS", 1)


def dying(cfg, tmp_path, times):
    (tmp_path / "deaths").mkdir()
    settings = {name: getattr(cfg.source, name) for name in field_names(cfg.source)}
    source = DyingLines.Config(**settings, deaths=str(tmp_path / "deaths"), times=times)
    return evolve(cfg, source=source)


def shards(folder):
    return contents(folder / "shards")


def test_processes_build_what_one_builds(cfg, tmp_path):
    reports = []
    built(cfg, tmp_path / "one", processes=1)
    built(cfg, tmp_path / "two", processes=2, report=reports.append)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert reports[-1].done_bytes == reports[-1].total_bytes > 0


def test_a_worker_that_is_killed_once_is_replaced(cfg, tmp_path):
    built(cfg, tmp_path / "store", processes=1)
    built(dying(cfg, tmp_path, times=1), tmp_path / "died", processes=2)
    assert shards(tmp_path / "died") == shards(tmp_path / "store")


def test_a_part_that_kills_its_workers_is_named_and_the_others_work_is_kept(cfg, tmp_path):
    cfg = dying(cfg, tmp_path, times=2)
    with pytest.raises(DataError, match=r"died 2 times while it read b\.jsonl.*exit code -9"):
        built(cfg, tmp_path / "store", processes=2)
    done = sorted((tmp_path / "store" / "shards").glob("*.json"))
    assert len(done) > 3
    before = {path: path.stat().st_mtime_ns for path in done}
    built(cfg, tmp_path / "store", processes=1)
    assert {path: path.stat().st_mtime_ns for path in done} == before


def test_what_is_wrong_in_a_worker_is_said_as_it_is(cfg, lines, tmp_path):
    with (lines / "b.jsonl").open("a") as file:
        file.write("\n{")
    with pytest.raises(DataError, match=r"b\.jsonl, line 41 is not JSON") as e:
        built(cfg, tmp_path / "store", processes=2)
    assert e.value.where == f"{lines / 'b.jsonl'}:41"


BUILD = """
import sys, time
from axcore.config import from_json
from axcore.data import build_store
from axcore.data.store import build, plan
build._BYTES_A_PROCESS, plan._SMALLEST = 1, 600
cfg = from_json(sys.stdin.read())
build_store(cfg.source.build(), cfg.tokenizer, sys.argv[1],
            validation_fraction=cfg.validation_fraction, processes=2,
            report=lambda progress: time.sleep(0.2))
"""


def test_a_build_goes_on_after_kill_9(cfg, tmp_path):
    folder = tmp_path / "killed"
    with subprocess.Popen([sys.executable, "-c", BUILD, folder], stdin=subprocess.PIPE) as running:
        running.stdin.write(to_json(cfg).encode())
        running.stdin.close()
        while not list(folder.glob("shards/*.json")):
            assert running.poll() is None
            time.sleep(0.01)
        running.kill()
    assert not (folder / "manifest.json").exists()
    done = list(folder.glob("shards/*.json"))
    before = {path: path.stat().st_mtime_ns for path in done}
    built(cfg, folder, processes=2)
    assert {path: path.stat().st_mtime_ns for path in done} == before
    built(cfg, tmp_path / "whole", processes=1)
    assert contents(folder) == contents(tmp_path / "whole")
