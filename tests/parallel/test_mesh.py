"""Meshes: sizes that work out, and errors with the numbers where they do not."""

import attrs
import jax
import numpy as np
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


# -- Several slices ------------------------------------------------------------------------------


@attrs.frozen
class Chip:
    """What a mesh looks at of a device that knows its slice."""

    id: int
    slice_index: int
    platform: str = "cpu"
    device_kind: str = "cpu"
    process_index: int = 0


def _slices_along(mesh, axis, slice_of):
    """Returns how many slices each line of devices along an axis passes through."""
    lines = np.moveaxis(mesh.devices, MESH_AXES.index(axis), -1)
    lines = lines.reshape(-1, lines.shape[-1])
    return {len({slice_of(device) for device in line}) for line in lines}


def test_only_the_axes_named_cross_slices():
    mesh = make_mesh({"fsdp": 2, "model": 2}, _devices(), slices={"data": 2})
    first = _devices()[0].id
    of_slice = lambda device: (device.id - first) // 4  # noqa: E731
    assert dict(mesh.shape) == {
        **dict.fromkeys(MESH_AXES, 1),
        "data": 2,
        "fsdp": 2,
        "model": 2,
    }
    assert _slices_along(mesh, "data", of_slice) == {2}
    assert _slices_along(mesh, "fsdp", of_slice) == _slices_along(mesh, "model", of_slice) == {1}


def test_an_axis_within_and_across_goes_through_one_slice_after_the_other():
    mesh = make_mesh({"fsdp": -1}, _devices(), slices={"fsdp": 2})
    assert mesh.shape["fsdp"] == 8
    assert [device.id for device in mesh.devices.flat] == [device.id for device in _devices()]


def test_devices_that_know_their_slice_are_put_there():
    devices = [Chip(id=i, slice_index=i % 2) for i in range(8)]
    mesh = make_mesh({"model": -1}, devices, slices={"pipeline": 2})
    assert _slices_along(mesh, "model", lambda chip: chip.slice_index) == {1}
    assert _slices_along(mesh, "pipeline", lambda chip: chip.slice_index) == {2}


@pytest.mark.parametrize(
    ("shape", "slices", "text"),
    [
        ({"fsdp": -1}, {"daat": 2}, r"no mesh axis is named 'daat'[\s\S]*slices[\s\S]*data"),
        ({"fsdp": -1}, {"data": -1}, r"mesh axis data has size -1"),
        ({"fsdp": -1}, {"data": 3}, r"slices data 3 are 3, which do not divide 8 devices"),
        ({"fsdp": 8}, {"data": 2}, r"mesh fsdp 8 needs 8 devices; there are 4 in a slice"),
    ],
)
def test_slices_that_do_not_work_out_are_refused(shape, slices, text):
    with pytest.raises(ShardingError, match=text):
        make_mesh(shape, _devices(), slices=slices)


def test_slices_that_are_not_there_are_refused():
    devices = [Chip(id=i, slice_index=i // 6) for i in range(8)]
    with pytest.raises(
        ShardingError, match="2 of 4 devices each, but slice 0 has 6, slice 1 has 2"
    ):
        make_mesh({"fsdp": -1}, devices, slices={"data": 2})
