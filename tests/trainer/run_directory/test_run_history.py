"""A run directory says what the run was started with, each time."""

import json
import signal
from importlib.metadata import version

import pytest

from axcore.plugins import plugin_host
from axcore.trainer import StepsDone


def stop_at_3(event):
    if isinstance(event, StepsDone) and event.step == 3:
        signal.raise_signal(signal.SIGINT)


def starts_of(directory):
    text = (directory / "run_history.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_every_start_is_a_line_with_versions_plugins_hardware_and_mesh(toy_trainer, tmp_path):
    toy_trainer.run(tmp_path / "run", [stop_at_3], returns_when_stopped=True)
    toy_trainer.run(tmp_path / "run")
    first, second = starts_of(tmp_path / "run")
    assert (first["step"], second["step"]) == (0, 3)
    assert first["packages"]["jax"] == version("jax")
    assert {"axcore", "jaxlib", "numpy", "optax", "grain"} <= set(first["packages"])
    assert "pytest" not in first["packages"]
    assert first["plugins"]["core"] == version("axcore")
    assert first["fingerprint"] == plugin_host().fingerprint()
    assert (first["hardware"], first["mesh"]) == ("cpu-1", "1 device")
    same = set(first) - {"step", "time"}
    assert {key: first[key] for key in same} == {key: second[key] for key in same}


@pytest.mark.slow
def test_going_on_with_other_versions_warns_and_names_them(toy_trainer, tmp_path):
    toy_trainer.run(tmp_path / "run", [stop_at_3], returns_when_stopped=True)
    (start,) = starts_of(tmp_path / "run")
    start["packages"] |= {"jax": "0.9.9", "leftpad": "1.0"}
    (tmp_path / "run/run_history.jsonl").write_text(json.dumps(start) + "\n", encoding="utf-8")
    with pytest.warns(UserWarning, match="other software or hardware") as caught:
        toy_trainer.run(tmp_path / "run")
    (warning,) = caught
    assert str(warning.message) == (
        "the run resumes from step 3 with other software or hardware than before, so its numbers "
        f"may differ in the last bits: jax was 0.9.9, is {version('jax')}; leftpad was 1.0, is "
        "absent"
    )


@pytest.mark.slow
def test_an_edited_plugin_of_the_same_version_is_named(toy_trainer, tmp_path):
    toy_trainer.run(tmp_path / "run", [stop_at_3], returns_when_stopped=True)
    (start,) = starts_of(tmp_path / "run")
    now = start["sources"]["axl_cpu"]
    assert now.split()[0] == version("axl-cpu")
    start["sources"]["axl_cpu"] = f"{version('axl-cpu')} 0123456789abcdef"
    (tmp_path / "run/run_history.jsonl").write_text(json.dumps(start) + "\n", encoding="utf-8")
    with pytest.warns(UserWarning, match="with other code than before") as caught:
        toy_trainer.run(tmp_path / "run")
    assert str(caught[0].message).endswith(
        f"the sources of axl_cpu were {version('axl-cpu')} 0123456789abcdef, and are {now}"
    )


@pytest.mark.slow
def test_a_damaged_record_of_starts_is_named_and_does_not_block_the_run(toy_trainer, tmp_path):
    toy_trainer.run(tmp_path / "run", [stop_at_3], returns_when_stopped=True)
    path = tmp_path / "run/run_history.jsonl"
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace('"step"', '"st\x01ep"', 1), encoding="utf-8")
    with pytest.warns(UserWarning, match=r"run_history\.jsonl is damaged at line 1"):
        assert toy_trainer.run(tmp_path / "run").is_complete
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.slow
def test_the_kernel_plan_is_kept_with_the_run(small_trainer, tmp_path):
    started = []
    small_trainer.run(tmp_path, [started.append, stop_at_3], returns_when_stopped=True)
    plan = json.loads((tmp_path / "kernels.json").read_text(encoding="utf-8"))
    chosen = {choice["op"]: (choice["kernel"], choice["hardware"]) for choice in plan}
    assert chosen["attention"] == chosen["cross_entropy"] == ("portable", "cpu-1")
    assert all(choice["why"] for choice in plan)
    assert starts_of(tmp_path)[0]["kernels"] == {op: name for op, (name, _) in chosen.items()}
    assert "attention portable" in started[0].kernels
