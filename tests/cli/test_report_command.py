"""`axcore report` and `axcore watch`: what a person sees of runs."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
import urllib.request

import pytest
from browser import page_in_browser, page_of_file
from click.testing import CliRunner
from driven_browser import opened

import axcore as ax
from axcore.aot.out_of_memory import StepMemoryRecorder
from axcore.cli.main import group
from axcore.cli.watch import curve
from axcore.errors import CheckpointError, ConfigError
from axcore.testing import small_experiment, trainer_on


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    cfg = ax.update_config(small_experiment(folder / "texts"), {"mesh": {"fsdp": 1}})
    for name, rate, every in (("one", 0.003, 1), ("two </script><i>", 0.001, 0)):
        changed = ax.update_config(
            cfg,
            {
                "learner.schedule.peak": rate,
                "logging.every_steps": 1,
                "logging.gradient_norms_every_steps": every,
            },
        )
        trainer = trainer_on(changed, 1)
        observers = [StepMemoryRecorder(trainer)] if every else []
        trainer.run(folder / name.replace("/", "_"), observers, quiet=True)
    return folder / "one", folder / "two <_script><i>"


def call(*words):
    done = CliRunner().invoke(group, [str(word) for word in words], catch_exceptions=False)
    return done.output


def facts_in(page):
    (found,) = re.findall(r'<script id="facts"[^>]*>(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


@pytest.mark.slow
def test_a_report_is_one_file_in_the_run(runs):
    assert call("report", runs[0]).strip() == str(runs[0] / "report.html")
    page = (runs[0] / "report.html").read_text("utf-8")
    assert not re.search(r"https?://(?!www\.w3\.org)|src=|@import|url\(", page)
    (found,) = facts_in(page)["runs"]
    assert found["curves"]["train"]["loss"] == list(ax.load_run(runs[0]).metrics["train"]["loss"])


@pytest.mark.slow
def test_a_report_has_what_the_compiled_step_needs_where_training_kept_it(runs):
    one, two = (json.loads(call("report", run, "--json"))["runs"][0] for run in runs)
    needed = one["step_memory"]
    assert needed["parameters_bytes"] == one["memory"]["parameters"]
    parts = ("parameters_bytes", "optimizer_bytes", "batch_bytes", "temporaries_bytes")
    assert needed["peak_bytes"] == sum(needed[part] for part in (*parts, "program_bytes"))
    assert any(buffer["module"].startswith("decoder.") for buffer in needed["largest"])
    assert (two["step_memory"], two["problems"]) == (None, [])


@pytest.mark.slow
def test_several_runs_are_compared(runs, tmp_path):
    out = tmp_path / "new" / "both.html"
    found = json.loads(call("report", *runs, "--out", out, "--json"))
    assert [one["name"] for one in found["runs"]] == [run.name for run in runs]
    page = out.read_text("utf-8")
    assert page.count("</script>") == 3
    assert facts_in(page)["runs"][1]["name"] == runs[1].name


@pytest.mark.slow
def test_a_browser_draws_the_curves_and_where_configs_differ(runs, tmp_path):
    call("report", *runs, "--out", tmp_path / "both.html")
    page = page_of_file(tmp_path / "both.html", width=400)
    assert len(re.findall(r'<path class="curve"', page)) >= 8
    assert "learner.schedule.peak" in page
    assert "two &lt;_script&gt;&lt;i&gt;" in page
    assert page.count("Gradient norms</h3>") == 1
    assert page.count("<iframe") == 2
    assert len(re.findall(r"The compiled step needs [\d.]+ MiB of a device\.", page)) == 1
    assert len(re.findall(r"not report their memory. The process held [\d.]+ [MG]iB", page)) == 2
    assert page.count("<li>Memory of the compiled step: axcore train keeps it") == 1
    assert page.count("<li>Gradient norms by module: --set") == 1


@pytest.mark.slow
def test_a_report_fits_a_phone_and_follows_the_theme_of_its_screen(runs):
    call("report", runs[0])
    rows = "[...document.querySelectorAll('td .splits')].map(one => one.closest('tr').offsetHeight)"

    async def look():
        async with opened((runs[0] / "report.html").as_uri()) as page:
            await page.show_as(width=400)
            assert await page.run("document.documentElement.scrollWidth") == 400
            assert 0 < await page.run(f"Math.max(...{rows})") < 50
            for scheme in ("dark", "light"):
                await page.show_as(width=400, scheme=scheme)
                await page.wait_for(f"document.documentElement.dataset.theme === '{scheme}'")
            assert page.complaints == []

    asyncio.run(look())


@pytest.mark.slow
def test_a_watched_run_is_shown_in_a_browser(runs):
    command = [sys.executable, "-m", "axcore", "watch", str(runs[0]), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            (address,) = re.findall(r"http://\S+", server.stdout.readline())
            with urllib.request.urlopen(f"{address}/facts.json") as answer:
                assert json.load(answer)["runs"][0]["name"] == "one"
            assert "live, " in page_in_browser(f"{address}/", wait_ms=3000)
        finally:
            server.terminate()


@pytest.mark.slow
def test_a_run_that_never_logged_is_shown_with_what_is_missing(runs, tmp_path):
    run = shutil.copytree(runs[0], tmp_path / "silent")
    for name in ("metrics.jsonl", "first_batch.npz", "run_history.jsonl", "kernels.json"):
        (run / name).unlink()
    (found,) = json.loads(call("report", run, "--json"))["runs"]
    assert (found["curves"], found["batch"], found["starts"]) == ({}, None, [])
    assert found["problems"] == []
    assert call("watch", run, "--once").startswith("silent  state stopped  step -")


@pytest.mark.slow
def test_a_line_that_is_written_just_now_hides_nothing(runs, tmp_path):
    run = shutil.copytree(runs[0], tmp_path / "torn")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "split": "train", "lo')
    line = call("watch", run, "--once")
    assert "step 2 of 2  loss " in line


@pytest.mark.slow
def test_watching_once_prints_a_line_for_each_run(runs):
    lines = call("watch", *runs, "--once").splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("one  state done  step 2 of 2  loss ")
    (found,) = json.loads(call("watch", runs[0], "--json"))
    assert found["step"] == 2


def test_a_curve_falls_with_its_values():
    assert curve([3.0, 2.0, 1.0]) == "█▅▁"
    assert curve([1.0, 1.0]) == "▁▁"
    assert len(curve([float(n) for n in range(1000)])) == 40
    assert curve([]) == ""


@pytest.mark.slow
def test_what_is_no_run_is_refused(tmp_path, monkeypatch, runs):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        call("report", tmp_path)
    with pytest.raises(ConfigError, match="there are no runs in runs"):
        call("watch", "--once")
    shutil.copytree(runs[0], tmp_path / "runs" / "one")
    assert call("watch", "--once").startswith("one  ")
