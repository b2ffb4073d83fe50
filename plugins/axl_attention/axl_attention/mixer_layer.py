"""`MixerLayer`: one branch that mixes tokens, and no feed-forward."""

from jaxtyping import Array, Float

from axcore.config import REQUIRED, PositiveInt, config
from axcore.layers import PreNorm, TokenInfo, shard
from axcore.module import Module


class MixerLayer(Module):
    """A mixer of tokens in a residual connection.

    Source: Gu and Dao 2023, arXiv:2312.00752, section 3.4. Slot protocol: the parent fills `dim`.
    """

    @config
    class Config(Module.Config["MixerLayer"]):
        """The config of a `MixerLayer`.

        Args:
            dim: Size of the last dimension of input and output.
            mixer: Mixes tokens; called with the token info.
            residual: Wraps it, and decides where the norm is.
        """

        dim: PositiveInt = REQUIRED
        mixer: Module.Config = REQUIRED
        residual: Module.Config = PreNorm.Config()

    def setup(self, cfg: Config) -> None:
        """Build the mixer and its residual connection."""
        self.mixer = cfg.mixer.build(dim=cfg.dim)
        self.residual = cfg.residual.build(dim=cfg.dim)

    def forward(
        self, x: Float[Array, "batch time dim"], info: TokenInfo
    ) -> Float[Array, "batch time dim"]:
        """Return the tokens after the branch."""
        x = self.residual(x, lambda normed: self.mixer(normed, info))
        return shard(x, "batch", "time", "embed")
