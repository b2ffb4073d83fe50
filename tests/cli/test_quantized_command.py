"""Training in float8 by name: refused where the hardware lacks it, emulated where asked for."""

import pytest

from axcore.cli.main import main

TINY = [
    f"--set={override}"
    for override in (
        "model.dim=32",
        "model.decoder.stack.num_layers=1",
        "**.num_heads=2",
        "**.num_kv_heads=1",
        "**.hidden_dim=48",
        "data.seq_len=16",
        "data.batch_size=16",
        "data.validation_batches=1",
        "learner.schedule.warmup_steps=1",
        "max_steps=2",
    )
]


def axcore(*arguments):
    """Runs `axcore` in this process and returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code or 0


@pytest.mark.parametrize("change", ["fp8_training", "fp8_delayed(history=4)"])
def test_float8_is_refused_on_a_host_and_leaves_nothing_behind(tmp_path, capsys, change):
    run = tmp_path / "run"
    assert axcore("train", "tiny", f"--modify={change}", f"--dir={run}", *TINY) != 0
    printed = "".join(capsys.readouterr())
    assert "attention.linear.dot and 2 more, and cannot run on cpu-16: wants float8" in printed
    assert "--set 'kernels.pins[\"quantized_dot\"]=emulated'" in printed
    assert not run.exists()


@pytest.mark.long
def test_emulated_float8_trains_draws_its_sample_and_more(tmp_path, capsys):
    """What runs after training is under the same pins as training."""
    run = tmp_path / "run"
    emulated = '--set=kernels.pins["quantized_dot"]=emulated'
    assert axcore("train", "tiny", "--modify=fp8_training", f"--dir={run}", emulated, *TINY) == 0
    assert "quantized_dot emulated" in capsys.readouterr().out
    assert (run / "sample.txt").read_text(encoding="utf-8").startswith("def ")
    assert axcore("generate", str(run), "--prompt=class ", "--max-tokens=3") == 0
    assert capsys.readouterr().out.startswith("class ")
