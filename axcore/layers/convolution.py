"""`Convolution` over one to three dimensions, and `PatchEmbedding`, from a picture to tokens.

Letters: B rows, H and W height and width, P places of a patch's side, C channels.
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.errors import ConfigError, ModuleError
from axcore.layers.linear import Linear, as_row
from axcore.module import Initializer, Module, Param, VarianceScaling
from axcore.parallel import shard

Padding = Literal["same", "valid", "causal"] | tuple[tuple[int, int], ...]

_LETTERS = {1: "T", 2: "HW", 3: "DHW"}


class Convolution(Module):
    """Each place's weighted sum of the places around it; channels are the last dimension.

    One to three dimensions, as many as `kernel_size` has. A depthwise convolution has as many
    groups as channels. Slot protocol: the parent fills `in_dim` and `out_dim`.

    Source: LeCun et al. 1989, Neural Computation 1(4); causal: van den Oord et al. 2016,
    arXiv:1609.03499, section 2.1.
    """

    @config
    class Config(Module.Config["Convolution"]):
        """The config of a `Convolution`.

        Args:
            in_dim: Channels of the input.
            out_dim: Channels of the output.
            kernel_size: Places of the kernel, one number for each dimension.
            stride: Places between two outputs; 1 each where None.
            dilation: Places between two inputs of a kernel; 1 each where None.
            padding: `same`: as many outputs as inputs, divided by the stride; where the zeros
                cannot be equally many on both sides, there is one more behind. `valid`: no zeros.
                `causal`: as `same`, with all zeros of the first dimension before it, so that no
                output depends on later inputs. Or zeros before and behind, for each dimension.
            num_groups: Groups of channels that are convolved on their own.
            has_bias: Whether a bias is added.
            axes: Logical axes of input and output channels.
            weight_init: First value of the kernel.
        """

        in_dim: PositiveInt = REQUIRED
        out_dim: PositiveInt = REQUIRED
        kernel_size: tuple[PositiveInt, ...] = REQUIRED
        stride: tuple[PositiveInt, ...] | None = None
        dilation: tuple[PositiveInt, ...] | None = None
        padding: Padding = "same"
        num_groups: PositiveInt = 1
        has_bias: bool = True
        axes: tuple[str | None, str | None] = ("embed", "mlp")
        weight_init: Initializer = VarianceScaling()

    def setup(self, cfg: Config) -> None:
        """Declare the kernel and the bias."""
        self.num_dims = len(cfg.kernel_size)
        self._check(cfg)
        # A kernel's input axis has the channels of one group, which are too few to be split.
        in_axis = cfg.axes[0] if cfg.num_groups == 1 else None
        self.weight = Param(
            (*cfg.kernel_size, cfg.in_dim // cfg.num_groups, cfg.out_dim),
            axes=(*(None for _ in cfg.kernel_size), in_axis, cfg.axes[1]),
            init=cfg.weight_init,
        )
        if cfg.has_bias:
            self.bias = Param((cfg.out_dim,), axes=cfg.axes[1:], init=0.0)

    def forward(
        self,
        x: Float[Array, "batch *places in_dim"],
        is_real: Bool[Array, "batch *places"] | None = None,
    ) -> Float[Array, "batch *out_places out_dim"]:
        """Return the weighted sum around each place.

        Args:
            x: The input.
            is_real: Which places are not padding of the batch; others count as zeros, as those
                past the ends do.

        Raises:
            ModuleError: The input has another number of dimensions than the kernel.
        """
        cfg = self.config
        if x.ndim != self.num_dims + 2:
            raise ModuleError(
                f"a convolution with kernel_size {cfg.kernel_size} gets an input {list(x.shape)}",
                hint=f"give it [batch, {self.num_dims} dimensions of places, {cfg.in_dim}]",
            )
        if is_real is not None:
            x = jnp.where(is_real[..., None], x, 0)
        places = _LETTERS[self.num_dims]
        y = jax.lax.conv_general_dilated(
            x,
            self.weight.astype(x.dtype),
            window_strides=self.stride,
            padding=self._padding(x.shape[1:-1]),
            rhs_dilation=self.dilation,
            feature_group_count=cfg.num_groups,
            dimension_numbers=(f"N{places}C", f"{places}IO", f"N{places}C"),
        )
        return y + as_row(self.bias.astype(y.dtype), y.ndim) if cfg.has_bias else y

    @property
    def stride(self) -> tuple[int, ...]:
        """Places between two outputs, for each dimension."""
        return self.config.stride or (1,) * self.num_dims

    @property
    def dilation(self) -> tuple[int, ...]:
        """Places between two inputs of a kernel, for each dimension."""
        return self.config.dilation or (1,) * self.num_dims

    def output_places(self, places: tuple[int, ...]) -> tuple[int, ...]:
        """Return how many outputs there are in each dimension, from how many inputs."""
        ends = zip(places, self._padding(places), self._reach(), self.stride, strict=True)
        return tuple(
            (size + before + behind - reach - 1) // stride + 1
            for size, (before, behind), reach, stride in ends
        )

    def _reach(self) -> tuple[int, ...]:
        """Return how far a kernel's last place is from its first one."""
        sizes = zip(self.config.kernel_size, self.dilation, strict=True)
        return tuple((size - 1) * dilation for size, dilation in sizes)

    def _padding(self, places: tuple[int, ...]) -> list[tuple[int, int]]:
        padding = self.config.padding
        if padding == "valid":
            return [(0, 0)] * self.num_dims
        if not isinstance(padding, str):
            return list(padding)
        found = []
        for index, (size, reach, stride) in enumerate(
            zip(places, self._reach(), self.stride, strict=True)
        ):
            if padding == "causal" and index == 0:
                found.append((reach, 0))
                continue
            total = max(0, (math.ceil(size / stride) - 1) * stride + reach + 1 - size)
            found.append((total // 2, total - total // 2))
        return found

    def _check(self, cfg: Config) -> None:
        """Check that all fields are of the same number of dimensions.

        Raises:
            ConfigError: They are not, or groups do not divide the channels.
        """
        if not 1 <= self.num_dims <= len(_LETTERS):
            raise ConfigError(
                f"kernel_size is {cfg.kernel_size}; a convolution has 1 to {len(_LETTERS)} "
                "dimensions",
                hint="kernel_size=(3,) is over time, (3, 3) over a picture",
            )
        for name in ("stride", "dilation", "padding"):
            value = getattr(cfg, name)
            if isinstance(value, tuple) and len(value) != self.num_dims:
                raise ConfigError(
                    f"{name} is {value}, and kernel_size {cfg.kernel_size} has {self.num_dims} "
                    "dimensions",
                    where=name,
                    hint=f"give {name} one value for each dimension",
                )
        for name in ("in_dim", "out_dim"):
            if getattr(cfg, name) % cfg.num_groups:
                raise ConfigError(
                    f"{name} is {getattr(cfg, name)}, not a multiple of num_groups, "
                    f"{cfg.num_groups}",
                    where="num_groups",
                    hint="a depthwise convolution has num_groups = in_dim",
                )


class PatchEmbedding(Module):
    """A token for each patch of a picture: its pixels, row by row, projected.

    It computes what a convolution does whose stride is its kernel size, as one matrix product. Slot
    protocol: the parent fills `dim`.

    Source: Dosovitskiy et al. 2020, arXiv:2010.11929, eq. 1.
    """

    @config
    class Config(Module.Config["PatchEmbedding"]):
        """The config of a `PatchEmbedding`.

        Args:
            dim: Size of a token.
            patch_size: P, pixels of each side of a patch.
            num_channels: C of the picture.
            leaves_out_rest: Whether pixels at the right and at the bottom that make no patch are
                left out, as a convolution does; otherwise they are an error.
            linear: Projects the `P * P * C` numbers of a patch.
        """

        dim: PositiveInt = REQUIRED
        patch_size: PositiveInt = 16
        num_channels: PositiveInt = 3
        leaves_out_rest: bool = False
        linear: Module.Config = Linear.Config(has_bias=True)

    def setup(self, cfg: Config) -> None:
        """Build the projection."""
        numbers = cfg.patch_size**2 * cfg.num_channels
        self.linear = cfg.linear.build(in_dim=numbers, out_dim=cfg.dim, axes=(None, "embed"))

    def forward(
        self, image: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch patches dim"]:
        """Return the tokens, row by row.

        Raises:
            ModuleError: Patches do not divide the picture.
        """
        cfg = self.config
        rows, height, width, channels = image.shape
        size = cfg.patch_size
        if cfg.leaves_out_rest:
            height, width = height - height % size, width - width % size
            image = image[:, :height, :width]
        if height % size or width % size or channels != cfg.num_channels:
            raise ModuleError(
                f"a picture has {height} x {width} pixels of {channels} channels; patches have "
                f"{size} x {size} of {cfg.num_channels}",
                hint="scale pictures to a multiple of patch_size, or change it",
            )
        patches = image.reshape(rows, height // size, size, width // size, size, channels)
        patches = patches.swapaxes(2, 3).reshape(rows, -1, size * size * channels)
        return shard(self.linear(patches), "batch", "time", "embed")
