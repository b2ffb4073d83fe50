"""Convolutions against a sum over places, and the laws of padding, causality and groups."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rounding import assert_same_to_rounding

from axcore.errors import ConfigError, ModuleError
from axcore.layers import Convolution, PatchEmbedding
from axcore.module import functional


def summed(x, weight, bias, *, stride, dilation, padding):
    """The convolution of one dimension, place by place, in float64."""
    x = np.pad(x.astype(np.float64), ((0, 0), padding, (0, 0)))
    reach = (len(weight) - 1) * dilation
    starts = range(0, x.shape[1] - reach, stride)
    taps = [[x[:, s + k * dilation] @ weight[k] for k in range(len(weight))] for s in starts]
    return np.stack([sum(one) for one in taps], axis=1) + bias


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("padding", ["valid", "causal", ((1, 2),)])
def test_a_convolution_is_a_sum_over_places(call, random, perturbed, stride, dilation, padding):
    layer = Convolution.Config(
        in_dim=3, out_dim=5, kernel_size=(3,), stride=(stride,), dilation=(dilation,),
        padding=padding,
    ).build()  # fmt: skip
    state, x = perturbed(layer.init(0)), random(2, 9, 3)
    zeros = {"valid": (0, 0), "causal": (2 * dilation, 0)}
    wanted = summed(
        x, *(np.asarray(state[one], np.float64) for one in ("weight", "bias")),
        stride=stride, dilation=dilation, padding=zeros.get(padding) or padding[0],
    )  # fmt: skip
    found = call(layer, state, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert layer.output_places((9,)) == (found.shape[1],)


@pytest.mark.parametrize("sizes", [(7,), (7, 4), (3, 4, 5)])
@pytest.mark.parametrize("padding", ["same", "valid", "causal"])
@pytest.mark.parametrize("stride", [1, 2])
def test_output_places_are_counted_before_anything_is_computed(sizes, padding, stride):
    layer = Convolution.Config(
        in_dim=1, out_dim=1, kernel_size=(3,) * len(sizes), padding=padding,
        stride=(stride,) * len(sizes),
    ).build()  # fmt: skip
    shape = jax.eval_shape(
        lambda x: functional(layer, layer.init(0), x)[0], jnp.ones((1, *sizes, 1))
    )
    assert layer.output_places(sizes) == shape.shape[1:-1]


def test_a_causal_convolution_sees_nothing_later(call, random, perturbed):
    layer = Convolution.Config(in_dim=2, out_dim=2, kernel_size=(3,), padding="causal").build()
    state, x = perturbed(layer.init(0)), random(1, 8, 2)
    changed = x.copy()
    changed[:, 5:] = 9
    assert_same_to_rounding(call(layer, state, x)[:, :5], call(layer, state, changed)[:, :5])


def test_a_depthwise_convolution_mixes_no_channels(call, random, perturbed):
    layer = Convolution.Config(in_dim=4, out_dim=4, kernel_size=(3, 3), num_groups=4).build()
    state, x = perturbed(layer.init(0)), random(1, 5, 5, 4)
    changed = x.copy()
    changed[..., 1:] = 0
    assert_same_to_rounding(call(layer, state, x)[..., 0], call(layer, state, changed)[..., 0])


def test_padding_of_a_batch_counts_as_nothing(call, random, perturbed):
    layer = Convolution.Config(in_dim=2, out_dim=3, kernel_size=(3,)).build()
    state, x = perturbed(layer.init(0)), random(2, 6, 2)
    is_real = np.arange(9)[None, :] < np.array([[6], [4]])
    long = np.concatenate([x, random(2, 3, 2)], axis=1)
    found = call(layer, state, long, is_real)
    assert_same_to_rounding(found[0, :6], call(layer, state, x)[0])
    assert_same_to_rounding(found[1, :4], call(layer, state, x[1:, :4])[0])


def test_patches_are_the_convolution_whose_stride_is_its_kernel(call, random, perturbed):
    patches = PatchEmbedding.Config(dim=5, patch_size=2, num_channels=3).build()
    layer = Convolution.Config(
        in_dim=3, out_dim=5, kernel_size=(2, 2), stride=(2, 2), padding="valid"
    ).build()
    state, x = perturbed(patches.init(0)), random(2, 4, 6, 3)
    own = {"weight": state["linear"]["weight"].reshape(2, 2, 3, 5), "bias": state["linear"]["bias"]}
    wanted = call(layer, own, x).reshape(2, 6, 5)
    assert_same_to_rounding(call(patches, state, x), wanted)


@pytest.mark.parametrize(
    "changes",
    [
        {"stride": (1, 1)},
        {"padding": ((1, 1), (1, 1))},
        {"num_groups": 2},
        {"kernel_size": (1,) * 4},
    ],
)
def test_fields_that_do_not_fit_are_named(changes):
    fields = {"in_dim": 3, "out_dim": 3, "kernel_size": (3,), **changes}
    with pytest.raises(ConfigError, match=next(iter(changes)).split("_")[0]):
        Convolution.Config(**fields).build()


def test_a_picture_of_another_size_is_named():
    patches = PatchEmbedding.Config(dim=4, patch_size=3).build()
    with pytest.raises(ModuleError, match="4 x 6 pixels of 3 channels"):
        functional(patches, patches.init(0), jnp.ones((1, 4, 6, 3)))


def test_kernels_have_the_variance_of_their_inputs():
    layer = Convolution.Config(in_dim=64, out_dim=64, kernel_size=(3, 3)).build()
    assert np.std(np.asarray(layer.init(0)["weight"])) == pytest.approx((9 * 64) ** -0.5, rel=0.03)


def test_pixels_that_make_no_patch_are_left_out_where_that_is_asked_for(call, random):
    patches = PatchEmbedding.Config(dim=4, patch_size=3, leaves_out_rest=True).build()
    state, x = patches.init(0), random(1, 7, 8, 3)
    assert_same_to_rounding(call(patches, state, x), call(patches, state, x[:, :6, :6]))
