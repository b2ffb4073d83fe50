"""A batch spec that contradicts itself is refused with the array that does."""

import pytest

from axcore.errors import DataError
from axcore.module import ArraySpec, BatchSpec


def spec(**arrays):
    return BatchSpec(arrays=arrays, unit="image", num_units=4)


def array(*shape, axes):
    return ArraySpec(shape=shape, axes=axes, dtype="float32")


def test_sizes_of_axes_are_those_of_the_arrays_wherever_they_are():
    image = array(4, 8, 6, axes=("batch", "height", None))
    whole = spec(input={"left": image, "right": image}, label=array(4, axes=("batch",)))
    assert whole.axis_sizes() == {"batch": 4, "height": 8}
    assert whole.num_rows == 4
    assert [name for name, _ in whole.leaves()] == ["input/left", "input/right", "label"]


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({}, "a batch has no arrays"),
        ({"a": array(4, 8, axes=("batch",))}, r"a of a batch has shape \(4, 8\) and axes"),
        (
            {"a": array(8, 4, axes=("time", "batch"))},
            "an axis for each dimension",
        ),
        (
            {"a": array(4, 8, axes=("batch", "time")), "b": array(4, 9, axes=("batch", "time"))},
            "b of a batch has 9 along 'time', where another array has 8",
        ),
    ],
)
def test_a_spec_that_contradicts_itself_is_refused(arrays, text):
    with pytest.raises(DataError, match=text):
        spec(**arrays)
