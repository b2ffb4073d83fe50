"""Meshes: sizes that work out, and errors with the numbers where they do not."""

import jax
import pytest

from axcore.errors import ShardingError
from axcore.parallel import MESH_AXES, make_mesh


def _devices():
    return jax.devices()[:8]


def test_free_axis_takes_the_devices_that_are_left():
    mesh = make_mesh({"data": 2, "fsdp": -1}, _devices())
    assert dict(mesh.shape) == {**dict.fromkeys(MESH_AXES, 1), "data": 2, "fsdp": 4}


def test_unnamed_axes_are_one_and_no_free_axis_is_needed():
    mesh = make_mesh({"model": 8}, _devices())
    assert mesh.axis_names == MESH_AXES
    assert mesh.shape["model"] == mesh.size == 8


def test_neighbouring_devices_lie_on_the_innermost_axis():
    mesh = make_mesh({"data": 4, "model": 2}, _devices())
    pairs = mesh.devices.reshape(4, 2)
    assert [device.id for device in pairs[0]] == [_devices()[0].id, _devices()[1].id]


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ({"fspd": 8}, r"no mesh axis is named 'fspd'[\s\S]*fsdp"),
        ({"data": 0}, r"mesh axis data has size 0[\s\S]*1 or more, or -1"),
        ({"data": -1, "fsdp": -1}, r"mesh axes data, fsdp are all -1[\s\S]*leave one of them free"),
        ({"data": 3}, r"mesh data 3 needs 3 devices; there are 8"),
        (
            {"data": 3, "fsdp": -1},
            r"mesh data 3 x fsdp -1 needs 3 devices or a multiple; there are 8",
        ),
        ({"data": 4}, r"needs 4 devices; there are 8[\s\S]*set one to -1"),
    ],
)
def test_shapes_that_do_not_work_out_are_refused(shape, text):
    with pytest.raises(ShardingError, match=text):
        make_mesh(shape, _devices())
