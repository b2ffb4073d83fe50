"""`check_same_model`: a model that begins with weights is the one they are of, but for edits."""

from collections.abc import Callable, Sequence
from typing import Any

from axcore.config import diff_config, field_names, format_diff, suggest_names
from axcore.config.paths import matches, parse_pattern
from axcore.errors import ConfigError
from axcore.interop.canonical import canonical, uncorrected
from axcore.interop.weight_edits import WeightEdit


def check_same_model(
    models: tuple[Any, Any],
    edits: Sequence[WeightEdit],
    *,
    may_differ: Sequence[str],
    normal: Callable[[Any], Any],
    where: str,
) -> None:
    """Checks that two models' configs agree in all that changes numbers.

    Args:
        models: The config of the source's model, and of the one that begins with its weights.
        edits: What is done to the weights; what these explain may differ.
        may_differ: Globs of what may differ besides.
        normal: Brings a config into a form that all have which make equal numbers.
        where: The source, for the error.

    Raises:
        ConfigError: Showing what differs; or a glob of `may_differ` has nothing to allow.
    """
    theirs, ours = (compared(uncorrected(cfg)) for cfg in models)
    for edit in reversed(edits):
        ours = edit.undone(ours, theirs)
    changes = diff_config(normal(theirs), normal(ours))
    for glob in may_differ:
        if not any(_allows(glob, change.path) for change in changes):
            raise ConfigError(
                f"{glob!r} allows nothing: the models do not differ there",
                where="init_from.may_differ",
                hint=suggest_names(glob, [change.path for change in changes]),
            )
    allowed = (*may_differ, *(glob for edit in edits for glob in edit.explains))
    left = tuple(one for one in changes if not any(_allows(glob, one.path) for glob in allowed))
    if left:
        raise ConfigError(
            f"the model is not the one that the weights are of (-: that one, +: this one)\n"
            f"{format_diff(left)}".rstrip(),
            where=where,
            hint="change the model's config, read other weights, or name in init_from.may_differ "
            "what differs on purpose",
        )


def compared(cfg: Any) -> Any:
    """Returns a config without what changes no number, if it describes a language model."""
    return canonical(cfg) if {"dim", "vocab_size"} <= set(field_names(cfg)) else cfg


def _allows(glob: str, path: str) -> bool:
    """Whether a glob matches a path, or what holds it."""
    pattern, steps = parse_pattern(glob), parse_pattern(path)
    return any(matches(pattern, steps[:end]) for end in range(1, len(steps) + 1))
