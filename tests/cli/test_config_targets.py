"""`axcore config` for hardware: what mesh rules change, between none and one target, or two."""

import pytest

from axcore.cli.main import main


def run(*arguments):
    with pytest.raises(SystemExit) as ended:
        main(["config", *arguments])
    return ended.value.code


def test_diff_of_two_targets_shows_what_their_rules_do_differently(capsys):
    assert run("diff", "llama2-7b", "--target=tpu-v4-512", "--target=tpu-v5e-256") == 1
    lines = capsys.readouterr().out.splitlines()
    path = "model.decoder.stack.layer.feed_forward.linear.dot"
    assert f"- {path}: PlainDot" in lines
    assert f"+ {path}: Int8Dynamic" in lines
    assert not [line for line in lines if "remat" in line or "mesh" in line]


def test_diff_of_one_target_compares_the_changes_on_it(capsys):
    assert run("diff", "tiny", "--target=tpu-v5e-4", "--modify=accumulate") == 1
    assert capsys.readouterr().out == "- num_micro_batches: 1\n+ num_micro_batches: 2\n"


def test_changes_and_overrides_are_on_both_of_two_targets(capsys):
    asked = ("--modify=accumulate(factor=4)", "--set=seed=3")
    assert run("diff", "tiny", "--target=tpu-v5e-4", "--target=gpu-h100-8", *asked) == 0
    assert capsys.readouterr().out == ""


def test_show_on_a_target_has_its_rule_and_what_the_user_set_over_it(capsys):
    asked = ("--modify=remat(policy=minimal)", "--set=num_micro_batches=2")
    assert run("show", "llama3-70b", "--target=trainium-trn2-64", *asked) == 0
    shown = capsys.readouterr().out
    assert "mesh: {'fsdp': -1, 'model': 4}" in shown
    assert "num_micro_batches: 2" in shown
    assert "layer.remat.save: ('attention_query'" in shown


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("tpu-v9-8", "no plugin knows target 'tpu-v9-8'; did you mean 'tpu-v"),
        ("gpu-h100-12", "12 chips are not a whole number of hosts of 8"),
        ("tpu-v5p-3", "the number counts 2 per chip, and 3 is no multiple"),
        ("llama", "does not end in a number"),
    ],
)
def test_a_target_that_nobody_knows_or_that_cannot_be_is_refused(capsys, target, said):
    assert run("show", "tiny", f"--target={target}") == 4
    told = capsys.readouterr().err
    assert said in told
    assert "hint:" in told


def test_three_targets_are_refused(capsys):
    targets = [f"--target=cpu-{count}" for count in (1, 2, 4)]
    assert run("diff", "tiny", *targets) == 2
    assert "3 targets are given" in capsys.readouterr().err
