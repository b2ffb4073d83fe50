"""`LoRA`: trains small corrections of linear layers, and nothing else."""

from typing import Any

from axcore.config import config, config_class, evolve, find_config, suggest_names, update_config
from axcore.config.paths import matches, parse_pattern
from axcore.errors import ConfigError
from axcore.layers import Dropout, LoRALinear
from axcore.layers.lora.linear import ADAPTERS, MAGNITUDES
from axcore.learner import Learner
from axcore.plugins import Hardware

ROUTERS = ("**.router.**",)
"""What has no adapters by default: a router trained apart from its experts forgets them."""


@config
class LoRA:
    """Puts a `LoRALinear` around linear layers, and freezes all else.

    Args:
        targets: Paths or globs of linear layers, or of modules that hold some.
        linear: Only layers of this class, as text.
        exclude: Globs of the paths of layers that get none.
        rank: Width of the corrections.
        alpha: They are multiplied by `alpha / rank`.
        dropout: Rate at which they do not see their input, in training.
        use_rslora: They are multiplied by `alpha / sqrt(rank)`: rank-stabilised LoRA.
        use_dora: The lengths of corrected weights' columns are trained too: DoRA.
    """

    targets: tuple[str, ...] = ("**",)
    linear: str = "axcore.layers:Linear"
    exclude: tuple[str, ...] = ROUTERS
    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    use_rslora: bool = False
    use_dora: bool = False

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Return `cfg` with adapters; a trainer's learner trains them only.

        Raises:
            ConfigError: A target matches no linear layer, or adapters are there already.
        """
        there = find_config(cfg, LoRALinear)
        if there:
            raise ConfigError(
                f"{there[0].path} has an adapter already; LoRA was applied twice",
                where=there[0].path,
                hint="apply it once, with all targets",
            )
        changes: dict[str, Any] = {
            path: LoRALinear.Config(
                base=base,
                rank=self.rank,
                alpha=self.alpha,
                dropout=Dropout.Config(rate=self.dropout),
                use_rslora=self.use_rslora,
                use_dora=self.use_dora,
            )
            for path, base in self._targets(cfg).items()
        }
        trainable = (*ADAPTERS, *MAGNITUDES) if self.use_dora else ADAPTERS
        for learner in find_config(cfg, Learner):
            changes[learner.path] = evolve(learner.node, trainable=trainable)
        return update_config(cfg, changes)

    def _targets(self, cfg: Any) -> dict[str, Any]:
        """Return the linear layers that are meant, by path."""
        linears = {found.path: found.node for found in find_config(cfg, config_class(self.linear))}
        excluded = {path for glob in self.exclude for path in _excluded(glob, list(linears))}
        meant: dict[str, Any] = {}
        for glob in self.targets:
            below = [path for path in linears if _is_at_or_below(glob, path)]
            if not below:
                raise self._no_linear(cfg, glob, list(linears))
            meant.update({path: linears[path] for path in below if path not in excluded})
        if not meant:
            raise ConfigError(
                f"LoRA has nothing to adapt: all {len(linears)} linear layers are excluded",
                where="LoRA.exclude",
                hint="exclude fewer of them",
            )
        return meant

    def _no_linear(self, cfg: Any, glob: str, linears: list[str]) -> ConfigError:
        there = [found for found in find_config(cfg, lambda _: True) if _is_at(glob, found.path)]
        what = f"{glob!r} matches nothing"
        if there:
            kind = type(there[0].node).__qualname__.removesuffix(".Config")
            what = f"{there[0].path} is a {kind}, which is no linear layer and holds none"
        return ConfigError(
            f"LoRA cannot be put there: {what}",
            where="LoRA.targets",
            hint=suggest_names(glob, linears) if linears else "name a config with linear layers",
        )


def _excluded(glob: str, linears: list[str]) -> list[str]:
    found = [path for path in linears if _is_at(glob, path)]
    if not found and glob not in ROUTERS:
        raise ConfigError(
            f"exclude names {glob!r}, which matches no linear layer",
            where="LoRA.exclude",
            hint=suggest_names(glob, linears),
        )
    return found


def _is_at(glob: str, path: str) -> bool:
    return matches(parse_pattern(glob), parse_pattern(path))


def _is_at_or_below(glob: str, path: str) -> bool:
    steps = parse_pattern(path)
    return any(matches(parse_pattern(glob), steps[:end]) for end in range(1, len(steps) + 1))
