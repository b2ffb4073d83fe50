"""Processes on this machine live and die together."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from axcore.errors import ProcessError
from axcore.launch import Job
from axcore.launch.local import Local

INDEX = "int(__import__('os').environ['AXCORE_PROCESS_ID'])"


def run(code, processes=2, **fields):
    command = (sys.executable, "-c", code)
    return Local(**fields).launch(Job(name="test", command=command, processes=processes))


def test_lines_are_marked_by_who_wrote_them(capfd):
    code = f"import sys; print('out', {INDEX}); print('err', {INDEX}, file=sys.stderr)"
    assert run(code, 3) == 0
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] out 0", "[1] out 1", "[2] out 2"]
    assert sorted(err.splitlines()) == ["[0] err 0", "[1] err 1", "[2] err 2"]


def test_every_process_is_started_once_and_told_where_it_stands(capfd):
    names = "'AXCORE_COORDINATOR', 'AXCORE_NUM_PROCESSES', 'AXCORE_PROCESS_ID'"
    assert run(f"import os; print(*(os.environ[name] for name in ({names})))", 3) == 0
    told = [line.split()[1:] for line in sorted(capfd.readouterr().out.splitlines())]
    assert {(address, count) for address, count, _ in told} == {(told[0][0], "3")}
    assert [index for _, _, index in told] == ["0", "1", "2"]


def test_one_process_is_not_marked_and_is_no_run_of_several(capfd):
    assert run("import os; print('AXCORE_COORDINATOR' in os.environ)", 1) == 0
    assert capfd.readouterr().out == "False\n"


def test_all_end_when_one_fails_and_its_code_is_returned(capfd):
    began = time.monotonic()
    code = f"import sys, time; sys.exit(9) if {INDEX} else time.sleep(60)"
    assert run(code, grace_s=0.2) == 9
    assert time.monotonic() - began < 50
    assert "process 0 is ended, because another failed" in capfd.readouterr().err


def test_a_process_that_is_killed_is_one_that_the_run_lost(capfd):
    assert run(f"import os; os.kill(os.getpid(), 9) if {INDEX} else None") == 9
    assert "process 1 was lost: it was ended by SIGKILL" in capfd.readouterr().err


def test_the_only_process_that_is_killed_ends_as_a_shell_reports_it():
    assert run("import os; os.kill(os.getpid(), 9)", 1) == 128 + 9


def test_variables_reach_every_process(capfd):
    assert run("import os; print(os.environ['GREETING'])", environment={"GREETING": "hi"}) == 0
    assert capfd.readouterr().out.count("hi") == 2


def test_a_signal_reaches_all_and_is_waited_for():
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), sys.exit(130)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    launch = (
        "import sys; from axcore.launch import Job; from axcore.launch.local import Local\n"
        f"job = Job(name='t', command=(sys.executable, '-c', {code!r}), processes=2)\n"
        "sys.exit(Local(grace_s=0.1).launch(job))"
    )
    command = [sys.executable, "-c", launch]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert {started.stdout.readline() for _ in range(2)} == {"[0] ready\n", "[1] ready\n"}
        os.kill(started.pid, signal.SIGTERM)
        assert started.wait(60) == 130


def test_local_runs_in_a_thread_that_may_set_no_signals():
    codes = []
    thread = threading.Thread(target=lambda: codes.append(run("pass")))
    thread.start()
    thread.join(60)
    assert codes == [0]


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(ProcessError, match="there is no program 'no-such-program'"):
        Local().launch(Job(name="test", command=("no-such-program",)))
