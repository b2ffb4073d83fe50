"""Latents of an autoencoder: what a file has, scaled, or a reason why it is bad."""

import io

import numpy as np
import pytest
from axl_vision.latents import Latents

FEATURE = Latents.Config(height=2, width=3, num_channels=4, scale=0.5).build()


def record_of(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return {"npy": file.getvalue()}


def test_latents_are_those_of_the_file_scaled():
    array = np.arange(24, dtype=np.float16).reshape(2, 3, 4)
    made = FEATURE.make(record_of(array), None)[""]
    assert made.dtype == FEATURE.arrays()[""].dtype == "float32"
    np.testing.assert_array_equal(made, array.astype(np.float32) / 2)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((3, 2, 4), np.float32), "expected floats of shape"),
        (np.zeros((2, 3, 4), np.int32), "int32"),
        (np.full((2, 3, 4), np.nan), "not finite"),
        (np.array([{}], object), "allow_pickle"),
    ],
)
def test_a_file_of_something_else_is_bad(array, reason):
    with pytest.raises(ValueError, match=reason):
        FEATURE.make(record_of(array), None)
