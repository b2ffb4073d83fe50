"""A device that takes longer than the others of its kind is named, and nobody else."""

import json
from pathlib import Path

import jax
import pytest
from click.testing import CliRunner
from guarded_run import guarded_trainer
from hypothesis import given
from hypothesis import strategies as st
from several_processes import finish, start_all
from texts import write_text

from axcore.cli.main import group
from axcore.config import config
from axcore.errors import ConfigError
from axcore.plugins import Hardware
from axcore.resilience import read_events
from axcore.resilience.device_probe import DeviceProbe, ProbeWork, slow_down
from axcore.resilience.faults import FaultPlan, SlowDevice
from axcore.resilience.stragglers import SlowDevices, StragglerCheck, Stragglers, slower_by


class EagerCheck(StragglerCheck):
    """One that probes at each log step, and waits for the probe to be compiled."""

    @config
    class Config(StragglerCheck.Config):
        """The same."""

        device_share: float = 1e9

    def on_start(self, trainer, directory):
        super().on_start(trainer, directory)
        self._probe.result()


def report(*rows, kinds=None, host="a", probe_s=0.1):
    devices = {str(at): [seconds, 1e-3] for at, seconds in enumerate(rows)}
    kinds = kinds or ["chip"] * len(rows)
    kinds = {str(at): kind for at, kind in enumerate(kinds)}
    return {"host": host, "kinds": kinds, "devices": devices, "probe_s": probe_s}


def named(judge, *reports):
    slow, _ = judge.judge(reports)
    return [(program, one.process, one.device) for program, one, _ in slow]


@given(st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=40), st.floats(0, 8))
def test_who_is_slow_is_found_without_comparing_everyone(seconds, mads):
    by = [slower_by(seconds, one) for one in range(len(seconds))]
    assert Stragglers(mads, patience=1).report(seconds) == [
        one for one, found in enumerate(by) if found > mads
    ]


@pytest.mark.parametrize(("ratio", "is_slow"), [(1.1, False), (1.2, True)])
def test_a_device_is_slow_from_a_ratio_on(ratio, is_slow):
    judge = SlowDevices(StragglerCheck.Config(patience=2))
    reports = report(1e-3, 1e-3), report(1e-3, ratio * 1e-3)
    assert named(judge, *reports) == []
    assert named(judge, *reports) == ([("compute", 1, 1)] if is_slow else [])


def test_a_device_is_compared_with_others_of_its_kind_only():
    judge = SlowDevices(StragglerCheck.Config(patience=1))
    kinds = ["new", "old", "new", "old"]
    assert named(judge, report(1e-3, 3e-3, 1e-3, 3e-3, kinds=kinds)) == []
    assert named(judge, report(1e-3, 3e-3, 1e-3, 6e-3, kinds=kinds)) == [("compute", 0, 3)]


def test_the_slowest_device_is_measured_by_program():
    judge = SlowDevices(StragglerCheck.Config())
    _, measured = judge.judge([report(1e-3, 1e-3, 3e-3)])
    assert measured == {"slowest_device/compute": 3.0, "slowest_device/memory": 1.0}


def test_a_ratio_that_equal_devices_have_is_refused(tmp_path):
    trainer = guarded_trainer(tmp_path / "text")
    with pytest.raises(ConfigError, match="equal devices would be slow"):
        StragglerCheck.Config(device_ratio=1.0).build().check(trainer)


def test_the_work_of_a_chip_follows_from_its_peaks():
    chip = Hardware(
        family="acme", peak_flops={"bfloat16": 1e15}, memory_bandwidth=4e12, devices_per_chip=2
    )
    work = ProbeWork.on(chip)
    assert 0.5e-3 < work.products * 2 * work.size**3 / 0.5e15 < 2e-3
    assert 0.5e-3 < work.passes * 2 * work.array_bytes / 2e12 < 2e-3


@pytest.mark.slow
def test_in_a_quiet_run_no_device_is_named_and_then_the_slow_one():
    devices = jax.devices()[:8]
    probe = DeviceProbe(devices, ProbeWork.on(Hardware.parse("cpu-8")))
    # Others use the machine, too: a device counts as slow here that takes three times as long.
    judge = SlowDevices(StragglerCheck.Config(device_ratio=3.0))
    kinds = {str(device.id): "cpu" for device in devices}

    def round_():
        rows = {str(one): row for one, row in probe.seconds().items()}
        return named(judge, {**report(), "kinds": kinds, "devices": rows})

    assert [name for _ in range(40) for name in round_()] == []
    slow_down(devices[5], 8, seconds=60)
    found = {name for _ in range(4) for name in round_()}
    slow_down(devices[5], 1, seconds=1)
    assert found == {("compute", 0, devices[5].id), ("memory", 0, devices[5].id)}


@pytest.mark.slow
def test_a_run_names_its_slow_device_everywhere_it_is_looked_for(tmp_path):
    guards = (
        FaultPlan.Config(faults=(SlowDevice(at_step=1, device=3, factor=3),)),
        (EagerCheck.Config(patience=2)),
    )
    trainer = guarded_trainer(tmp_path / "text", *guards, devices=8)
    with pytest.warns(UserWarning, match=r"device 3 \(cpu\) of process 0 on .* is slow"):
        trainer.run(tmp_path / "run", quiet=True)
    events = [one for one in read_events(tmp_path / "run").events if one["event"] == "slow_device"]
    assert {(one["device"], one["program"]) for one in events} == {(3, "compute"), (3, "memory")}
    assert all(one["ratio"] > 2 for one in events)
    why = CliRunner().invoke(group, ["runs", "why", str(tmp_path / "run")]).output
    assert "device 3 (cpu) of process 0 on " in why
    seen = CliRunner().invoke(group, ["watch", "--once", str(tmp_path / "run")]).output
    assert "slow device 3 of process 0 at step " in seen
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    ratios = [one["slowest_device/compute"] for one in lines if "slowest_device/compute" in one]
    assert ratios[-1] > 2


def test_a_device_that_is_not_there_cannot_be_slow(tmp_path):
    trainer = guarded_trainer(tmp_path / "text", devices=2)
    with pytest.raises(ConfigError, match="device is 2; this process has 2"):
        SlowDevice(at_step=1, device=2).check(trainer)


@pytest.mark.slow
def test_the_slow_device_of_another_process_is_named(tmp_path):
    write_text(tmp_path / "text", files=12)
    worker = Path(__file__).with_name("probed_worker.py")
    ended = [finish(one) for one in start_all(worker, tmp_path, count=2, devices=2)]
    assert [one.exit_code for one in ended] == [0, 0], ended
    events = [one for one in read_events(tmp_path / "run").events if one["event"] == "slow_device"]
    slow = json.loads(ended[1].stdout.splitlines()[-1])["slow"]
    assert {(one["straggler"], one["device"]) for one in events} == {(1, slow)}
