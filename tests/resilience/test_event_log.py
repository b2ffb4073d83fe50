"""Events of all processes are in one file, whole, whatever happens to some of its lines."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from axcore.resilience import EventLog, read_events


def test_what_is_written_is_read_back_in_order_with_its_time_and_writer(tmp_path):
    EventLog(tmp_path, "supervisor").write("started", processes=2)
    EventLog(tmp_path, 1).write("hang", phase="save")
    first, second = read_events(tmp_path).events
    assert (first["event"], first["process"], first["processes"]) == ("started", "supervisor", 2)
    assert (second["event"], second["process"], second["phase"]) == ("hang", 1, "save")
    age = datetime.now(UTC) - datetime.fromisoformat(first["time"])
    assert timedelta(0) - timedelta(milliseconds=2) <= age < timedelta(minutes=1)


def test_a_run_without_a_log_has_no_events(tmp_path):
    assert read_events(tmp_path / "no-such-run").events == ()


def test_damaged_lines_are_named_and_the_others_are_kept(tmp_path):
    log = EventLog(tmp_path, 0)
    log.write("one")
    path = tmp_path / "events.jsonl"
    with path.open("ab") as file:
        file.write(b'\xff\x00{"event"\n[1]\n{"event": "x", "time": "now"}\n{"time": "cut sh')
    log.write("two")
    found = read_events(tmp_path)
    assert [event["event"] for event in found.events] == ["one", "two"]
    assert [text.partition(":")[0] for text in found.damaged] == [
        f"line {number} of events.jsonl is damaged" for number in (2, 3, 4, 5)
    ]
    assert found.damaged[1].endswith("expected an object, got list")
    assert found.damaged[2].endswith("no process")


def test_a_log_that_cannot_be_written_warns_and_ends_nothing(tmp_path):
    with pytest.warns(UserWarning, match=r"the event 'started' is not in events\.jsonl: .*No such"):
        EventLog(tmp_path / "gone", 0).write("started")


def test_processes_that_write_at_once_never_mix_their_lines(tmp_path):
    code = (
        "import sys; from pathlib import Path; from axcore.resilience import EventLog\n"
        "log = EventLog(Path(sys.argv[1]), int(sys.argv[2]))\n"
        "for number in range(300): log.write('beat', number=number, text='x' * 500)"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path, str(index)]) for index in range(4)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    found = read_events(tmp_path)
    assert found.damaged == ()
    for index in range(4):
        own = [event["number"] for event in found.events if event["process"] == index]
        assert own == list(range(300))


def test_lines_are_json_for_any_program(tmp_path):
    EventLog(tmp_path, 0).write("error", text="a\nb \u2028 ü")
    (line,) = (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["text"] == "a\nb \u2028 ü"
