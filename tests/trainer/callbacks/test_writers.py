"""Metric writers: extra ones are named in the config, and one that fails ends the run by name."""

import json
import re

import pytest

from axcore.config import update_config
from axcore.errors import ConfigError, TrainingError
from axcore.plugins import plugin_host
from axcore.plugins.time_limit import CALLBACK_TIMEOUT
from axcore.trainer.callbacks.writers import Writers, find_writers

PLUGIN = """
    from axcore.plugins import MetricWriter, Ref, hook

    @hook.metric_writers
    def metric_writers():
        for name in ("text", "broken", "leaky", "shut", "stuck", "sure"):
            yield MetricWriter(name=name, fn=Ref(f"axl_paper.paper:{name}"), summary="On paper")
"""

WRITERS = """
    import sqlite3, time
    from pathlib import Path

    class Text:
        def __init__(self, directory, step):
            self.file = (Path(directory) / "paper.txt").open("a")

        def write(self, step, split, metrics):
            self.file.write(f"{step} {split} {metrics['loss']!r}\\n")

        def close(self):
            self.file.write("closed\\n")
            self.file.close()

    class Broken(Text):
        def write(self, step, split, metrics):
            if step == 7:
                raise OSError("the printer is on fire")

    class Leaky(Text):
        def close(self):
            super().close()
            raise OSError("the ink is wet")

    class Shut(Text):
        def __init__(self, directory, step):
            raise OSError("no paper")

    class Stuck(Text):
        def __init__(self, directory, step):  # it is never closed, so it opens nothing
            pass

        def write(self, step, split, metrics):
            time.sleep(600)

        def close(self):
            raise OSError("closed while it writes")

    class Sure:
        def __init__(self, directory, step):
            self.connection = sqlite3.connect(":memory:")  # takes calls of one thread alone

        def write(self, step, split, metrics):
            self.connection.execute("select 1")

        def close(self):
            raise SystemExit(0)

    text, broken, leaky, shut, stuck, sure = Text, Broken, Leaky, Shut, Stuck, Sure
"""


@pytest.fixture
def paper(make_dist):
    make_dist("axl-paper", PLUGIN, files={"paper.py": WRITERS})


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run"


def lines(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def writers(directory, *names):
    return Writers(find_writers(names), directory, step=0)


@pytest.mark.slow
def test_a_run_writes_to_every_writer_of_its_config(paper, toy_config, one_device, directory):
    cfg = update_config(toy_config, {"max_steps": 5, "logging.writers": ("text",)})
    one_device(cfg).run(directory)
    expected = [f"{line['step']} {line['split']} {line['loss']!r}" for line in lines(directory)]
    assert [line["step"] for line in lines(directory)] == [1, 2, 3, 4, 4, 5, 5]
    assert (directory / "paper.txt").read_text().splitlines() == [*expected, "closed"]


@pytest.mark.long
def test_writers_may_change_when_a_run_is_taken_up_again(paper, toy_config, one_device, directory):
    broken = one_device(update_config(toy_config, {"logging.writers": ("json_lines", "broken")}))
    with pytest.raises(TrainingError) as raised:
        broken.run(directory)
    text = str(raised.value)
    assert "the metric writer 'broken' of plugin 'axl-paper' raised OSError while it writes" in text
    assert "train metrics: the printer is on fire" in text
    assert f"where:  step 7 of {directory}" in text
    assert "or take 'broken' out of `writers`" in text
    assert (directory / "paper.txt").read_text() == "closed\n"
    result = one_device(toy_config).run(directory)
    assert result.is_complete
    steps = [line["step"] for line in lines(directory) if line["split"] == "train"]
    assert steps == [*range(1, 13)]


def test_a_writer_that_cannot_be_opened_closes_those_before_it(paper, tmp_path):
    with pytest.raises(TrainingError, match="'shut' of plugin 'axl-paper' raised OSError while it"):
        writers(tmp_path, "text", "shut").__enter__()
    assert (tmp_path / "paper.txt").read_text() == "closed\n"


def test_a_writer_that_cannot_be_closed_is_an_error_after_all_are_closed(paper, tmp_path):
    with (
        pytest.raises(TrainingError, match=r"'leaky' .* while it is closed: the ink is wet"),
        writers(tmp_path, "text", "leaky"),
    ):
        pass
    assert (tmp_path / "paper.txt").read_text() == "closed\nclosed\n"


def test_a_writer_that_cannot_be_closed_does_not_hide_why_the_run_ended(paper, tmp_path):
    with pytest.raises(ZeroDivisionError) as raised, writers(tmp_path, "leaky"):
        1 / 0  # noqa: B018
    assert "the ink is wet" in raised.value.__notes__[0]


def test_a_writer_that_hangs_is_named_with_its_line_and_the_others_are_closed(
    paper, tmp_path, monkeypatch
):
    monkeypatch.setenv(CALLBACK_TIMEOUT, "0.3")
    with (
        pytest.raises(TrainingError) as raised,
        writers(tmp_path, "text", "stuck") as opened,
    ):
        opened.write(3, "train", {"loss": 1.0})
    what = "the metric writer 'stuck' of plugin 'axl-paper' has not finished after 0.3 s while it "
    assert raised.value.what.startswith(f"{what}writes train metrics; it is at ")
    assert re.search(r"axl_paper/paper.py:\d+$", raised.value.what)
    assert "or take 'stuck' out of `writers`; or set AXCORE_CALLBACK" in raised.value.hint
    assert (tmp_path / "paper.txt").read_text() == "3 train 1.0\nclosed\n"


def test_a_writer_works_in_one_thread_and_cannot_end_the_process(paper, tmp_path):
    with (
        pytest.raises(TrainingError, match=r"'sure' .* raised SystemExit while it is closed"),
        writers(tmp_path, "sure") as opened,
    ):
        opened.write(1, "train", {"loss": 1.0})


def test_json_lines_come_first_and_are_always_on(paper):
    assert [record.name for record in find_writers(())] == ["json_lines"]
    assert [one.name for one in find_writers(("text", "json_lines"))] == ["json_lines", "text"]
    assert find_writers(())[0] in plugin_host().plugin("core").records


def test_writers_that_are_unknown_or_named_twice_are_refused(toy_config, one_device):
    names = ("json_line", "json_lines", "json_lines")
    with pytest.raises(ConfigError) as raised:
        one_device(update_config(toy_config, {"logging.writers": names}))
    text = str(raised.value)
    assert "logging.writers: unknown metric writer 'json_line'; did you mean" in text
    assert "'json_lines'" in text
    assert "writers names 'json_lines' 2 times" in text
