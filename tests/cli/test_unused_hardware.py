"""A machine whose accelerator JAX does not use says so, and how to install what is missing."""

import os

import pytest

from axcore import testing

PLUGIN = """
from axcore.plugins import Hardware, HardwareFamily, Ref, hook

@hook.hardware_families
def hardware_families():
    yield HardwareFamily(
        name="acme",
        hosts=(Hardware(family="acme", generation="x1", chips=4),),
        detect=Ref("axl_acme.chips:detect"),
        present=Ref("axl_acme.chips:present"),
        install="axl-acme[chips]",
        summary="",
    )
"""
CHIPS = """
def detect(platform, device_kind): return None
def present(environment): return True
"""


@pytest.fixture
def path_with_a_chip(tmp_path):
    """Returns a Python path on which a plugin sees a chip that JAX knows nothing of."""
    testing.make_dist(tmp_path / "site", "axl-acme", PLUGIN, files={"chips.py": CHIPS})
    return os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])


@pytest.mark.parametrize("command", [("doctor",), ("train", "tiny", "--set=max_steps=0")])
@pytest.mark.quick_one_in(4)
def test_commands_warn_of_an_accelerator_that_jax_does_not_use(cli, path_with_a_chip, command):
    ran = cli(*command, PYTHONPATH=path_with_a_chip)
    shown = ran.stdout + ran.stderr
    assert "this machine has hardware of family 'acme', but JAX runs on cpu-" in shown
    assert "pip install 'axl-acme[chips]', or set JAX_PLATFORMS=cpu" in shown
