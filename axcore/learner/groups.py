"""Groups of parameters: which optimizer trains which parameter, by globs of their paths.

The first group with a matching glob takes a parameter. Frozen parameters have no gradient and no
optimizer state at all.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import jax

from axcore.config import REQUIRED, Configurable, Resumable, config, suggest_names
from axcore.config.paths import matches, parse_pattern
from axcore.errors import ConfigError
from axcore.module import ParamSpec

if TYPE_CHECKING:
    import optax

REST = "rest"
"""The name of the group of all parameters that no other group takes."""


@config
class ParamGroup:
    """Describes a group of parameters that train in their own way.

    Args:
        name: What metrics and checkpoints call it.
        params: Globs of the paths of its parameters in the state, `**.attention.**`.
        matrices_only: Whether it takes only matrices among them: parameters of two dimensions,
            those that stacked layers add not counted.
        is_frozen: Whether its parameters stay as they are.
        optimizer: Its optimizer; None takes the learner's.
        schedule: Its learning rate; None takes the learner's.
        rate_scale: Factor on its learning rate.
    """

    name: str = REQUIRED
    params: tuple[str, ...] = REQUIRED
    matrices_only: bool = False
    is_frozen: bool = False
    optimizer: Configurable.Config | None = None
    schedule: Resumable[Configurable.Config | None] = None
    rate_scale: Resumable[float] = 1.0

    def takes(self, spec: ParamSpec) -> bool:
        """Whether the group would take a parameter that no group before it took."""
        if self.matrices_only and not spec.is_matrix:
            return False
        return any(matches(parse_pattern(glob), spec.state_path) for glob in self.params)


def group_of(spec: ParamSpec, groups: Sequence[ParamGroup]) -> str:
    """Return the name of the group that trains a parameter."""
    return next((group.name for group in groups if group.takes(spec)), REST)


def with_frozen(specs: Any, trainable: Sequence[str], groups: Sequence[ParamGroup]) -> Any:
    """Return a tree of specs in which parameters that are not trained are marked as frozen.

    Args:
        specs: What `module.param_specs()` returns.
        trainable: Globs of paths in the state; what none of them matches is frozen.
        groups: Groups, of which some may be frozen.

    Raises:
        ConfigError: A glob matches no parameter, or a group is empty.
    """
    params = [spec for spec in _leaves(specs) if spec.is_trainable]
    kept = {path for glob in trainable for path in _matched(glob, params, "learner.trainable")}
    _check_groups(groups, params)
    frozen = {group.name for group in groups if group.is_frozen}

    def marked(spec: ParamSpec) -> ParamSpec:
        is_kept = spec.state_path in kept and group_of(spec, groups) not in frozen
        # Buffers are never trained, so they are not frozen either: what else they mean stays.
        return spec if spec.is_buffer or is_kept else attrs.evolve(spec, is_frozen=True)

    return jax.tree.map(marked, specs, is_leaf=_is_spec)


def _check_groups(groups: Sequence[ParamGroup], params: Sequence[ParamSpec]) -> None:
    """Check that groups are named apart, and that each gets parameters.

    Raises:
        ConfigError: Two have the same name, a glob matches nothing, or a group is left empty.
    """
    names = [REST, *(group.name for group in groups)]
    taken = {group_of(spec, groups) for spec in params}
    for index, group in enumerate(groups):
        where = f"learner.groups[{index}]"
        if group.name in names[: index + 1]:
            raise ConfigError(
                f"two groups are called {group.name!r}",
                where=f"{where}.name",
                hint=f"name each group once; {REST!r} is what no group takes",
            )
        # All globs are looked at, also of a group that has
        # parameters: one that matches nothing is a typo.
        for glob in group.params:
            _matched(glob, params, f"{where}.params")
        if group.name not in taken:
            raise ConfigError(
                f"group {group.name!r} is empty: groups before it take all that it matches"
                if any(group.takes(spec) for spec in params)
                else f"group {group.name!r} is empty: nothing that it matches is a matrix",
                where=where,
                hint="put it before groups that match the same parameters, or remove it",
            )


def partition(
    specs: Any,
    groups: Sequence[ParamGroup],
    transformation: "Callable[[str, Any], optax.GradientTransformation]",
) -> "optax.GradientTransformation":
    """Return one transformation that trains the parameters of each group with the group's own.

    Args:
        specs: Specs of all parameters that are trained.
        groups: The groups.
        transformation: From a group's name and specs, those of other groups masked, to what trains
            it.
    """
    import optax

    # Labels as a tree, as optax wants them; each parameter is asked for once.
    labels = jax.tree.map(lambda spec: group_of(spec, groups), specs, is_leaf=_is_spec)

    def of_group(name: str) -> Any:
        # MaskedNode is a tree without leaves, so the wrapped optimizer keeps nothing for it.
        return jax.tree.map(
            lambda label, spec: spec if label == name else optax.MaskedNode(), labels, specs
        )

    names = dict.fromkeys(jax.tree.leaves(labels))
    return optax.partition({name: transformation(name, of_group(name)) for name in names}, labels)


def _matched(glob: str, params: Sequence[ParamSpec], where: str) -> list[Any]:
    found = [spec.state_path for spec in params if matches(parse_pattern(glob), spec.state_path)]
    if not found:
        raise ConfigError(
            f"{glob!r} matches no parameter of the model",
            where=where,
            hint=suggest_names(glob, [spec.name for spec in params]),
        )
    return found


def _leaves(specs: Any) -> list[ParamSpec]:
    return jax.tree.leaves(specs, is_leaf=_is_spec)


def _is_spec(leaf: Any) -> bool:
    return isinstance(leaf, ParamSpec)
