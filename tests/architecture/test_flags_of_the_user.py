"""What the user set in `XLA_FLAGS` applies in addition to the suite's own flags."""

import os
import subprocess
import sys
from pathlib import Path

from quick_flags import QUICK_FLAGS, quick_environment, xla_flags

ROOT = Path(__file__).parents[2]
COUNT = "--xla_force_host_platform_device_count"


def test_flags_are_added_to_those_of_the_user(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_cpu_max_isa=AVX2 {COUNT}=3 --xla_a=1")
    assert xla_flags("--xla_a=2") == "--xla_cpu_max_isa=AVX2 --xla_a=2"
    assert xla_flags() == f"--xla_cpu_max_isa=AVX2 --xla_a=1 {QUICK_FLAGS}"
    child = quick_environment(devices=2)["XLA_FLAGS"].split()
    assert {"--xla_cpu_max_isa=AVX2", f"{COUNT}=2"} < set(child)


def test_the_suite_has_its_devices_whatever_the_user_set():
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider"]
    test = ROOT / "tests/architecture/test_suite_settings.py"
    done = subprocess.run(
        [*command, str(test), "-k", "settings_hold"],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
