"""A wrong kernel is found by steps that are computed with the core's kernels, too."""

import pytest

from axcore.cli.main import main
from axcore.config import update_config
from axcore.errors import KernelError, TrainingError
from axcore.experiments.tiny import tiny
from axcore.testing import trainer_on
from axcore.trainer.reference_steps import compare_steps

KERNELS = """
import jax
import jax.numpy as jnp
from axcore.ops.rms_norm.kernels import rms_norm_portable, rms_norm_portable_backward
from axcore.ops.attention.kernels import attention_portable

def right(inputs, spec):
    return rms_norm_portable(inputs, spec)

def larger(inputs, spec):
    return right(inputs, spec) * 1.01

def not_finite(inputs, spec):
    y = right(inputs, spec)
    return y.at[(0,) * y.ndim].set(jnp.nan)

def larger_gradient(inputs, spec, *, dy):
    dx, dscale = rms_norm_portable_backward(inputs, spec, dy=dy)
    return type(inputs)(dx, dscale * 1.01)

def attention_by_softmax(inputs, spec):
    return attention_portable(inputs, spec)
"""

PLUGIN = """
from axcore.plugins import Kernel, Ref, hook

@hook.kernels
def kernels():
    yield Kernel(op="{op}", name="odd", priority=200, {details})
"""

OWN = 'forward=Ref("axl_acme.code:{}"), is_differentiable=True'
SIZES = {
    "model.dim": 32,
    "**.feed_forward.hidden_dim": 48,
    "**.stack.num_layers": 2,
    "data.seq_len": 32,
    "data.batch_size": 4,
    "max_steps": 6,
    "logging.every_steps": 1,
    "rollback.max_skipped_steps": 1,
}


def contents(run):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.fixture
def trainer(make_dist):
    """Makes a trainer of `tiny` with a kernel of a plugin, scanned over two layers."""

    def make(details, op="rms_norm"):
        source = PLUGIN.format(op=op, details=details)
        make_dist("axl-acme", source, files={"code.py": KERNELS})
        return trainer_on(update_config(tiny(), SIZES), 1)

    return make


def test_a_kernel_with_wrong_values_is_named_with_its_op_and_each_module(trainer, tmp_path):
    found = compare_steps(trainer(OWN.format("larger")), tmp_path, num_steps=3)
    with pytest.raises(KernelError) as raised:
        found.check()
    first, _, rest = raised.value.what.partition("\n")
    assert first.startswith(
        "step 1: rms_norm/odd of plugin 'axl-acme', called by "
        "decoder.stack.layer.attention_residual.norm: y is off by 1.00% on average"
    )
    assert first.endswith("that of rms_norm/portable, in 2 of 2 calls")
    assert "called by decoder.norm" in rest
    assert raised.value.where == "decoder.stack.layer.attention_residual.norm"
    assert "--set \"kernels.pins={'rms_norm': 'portable'}\"" in raised.value.hint


@pytest.mark.slow
def test_numbers_that_are_not_finite_are_those_of_the_first_kernel(trainer, tmp_path):
    (found,) = compare_steps(trainer(OWN.format("not_finite")), tmp_path, num_steps=3).differences
    assert found.module == "decoder.stack.layer.attention_residual.norm"
    assert found.what == "is not finite in 1 numbers that are finite by"
    assert (found.num_wrong, found.num_calls) == (1, 2)


@pytest.mark.slow
def test_a_backward_kernel_with_a_wrong_gradient_is_named(trainer, tmp_path):
    details = 'forward=Ref("axl_acme.code:right"), backward=Ref("axl_acme.code:larger_gradient")'
    found = compare_steps(trainer(details), tmp_path, num_steps=1)
    assert {one.kernel.key for one in found.differences} == {"rms_norm_backward/odd"}
    assert {one.array for one in found.differences} == {"the gradient of scale"}


@pytest.mark.slow
def test_a_right_kernel_differs_in_no_step(trainer, tmp_path):
    details = OWN.format("attention_by_softmax")
    found = compare_steps(trainer(details, op="attention"), tmp_path, num_steps=2)
    assert (found.first, found.last, found.differences) == (1, 2, ())
    assert str(found) == "steps 1 to 2: attention/odd agree with axcore's own kernels"


@pytest.mark.slow
def test_steps_begin_at_the_newest_checkpoint_with_its_batches(trainer, tmp_path):
    details = OWN.format("larger")
    made, run = trainer(details), tmp_path / "run"
    made.run(run, quiet=True)
    before = contents(run)
    found = compare_steps(made, run, num_steps=2)
    assert (found.first, found.last) == (7, 7)
    assert len(found.differences) > 0
    assert contents(run) == before


@pytest.mark.slow
def test_after_steps_that_are_not_finite_the_error_names_kernels_that_never_ran(trainer, tmp_path):
    with pytest.raises(TrainingError) as raised:
        trainer(OWN.format("not_finite")).run(tmp_path / "run", quiet=True)
    assert "These kernels never ran on cpu: rms_norm/odd (plugin axl-acme)" in raised.value.hint
    assert "--reference-steps 2" in raised.value.hint


@pytest.mark.slow
def test_the_command_names_the_kernel_and_writes_nothing(make_dist, tmp_path, capsys):
    source = PLUGIN.format(op="rms_norm", details=OWN.format("larger"))
    make_dist("axl-acme", source, files={"code.py": KERNELS})
    sizes = {**SIZES, "data.batch_size": 16, "**.stack.num_layers": 1}  # all devices are used
    sets = [f"--set={path}={value}" for path, value in sizes.items()]
    with pytest.raises(SystemExit) as ended:
        main(["train", "tiny", *sets, f"--dir={tmp_path / 'run'}", "--reference-steps", "2"])
    assert ended.value.code == 5
    assert "step 1: rms_norm/odd of plugin 'axl-acme'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
