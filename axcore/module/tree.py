"""The tree of modules: where each is, so that a call finds its state, key and name."""

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from axcore.errors import ModuleError
from axcore.module.context import Index, ModuleLocation
from axcore.module.rng import Path, format_path
from axcore.module.transforms import StackedModule

if TYPE_CHECKING:
    from axcore.module.module import Module


@runtime_checkable
class ModuleNode(Protocol):
    """What a module can have as a child: a module, or a `StackedModule` of one."""

    def specs_at(self, path: Path, seen: set[int]) -> dict[str, Any]:
        """Returns the specs at a path of the tree, but for modules in `seen`, which it adds to."""


def index_of(module: "Module") -> Index:
    """Returns the places of all modules of a tree; a shared one is where it comes first.

    Raises:
        ModuleError: A module in a `StackedModule` is shared with a module outside of it.
    """
    index: Index | None = module.__dict__.get("_index")
    if index is None:
        index = {id(module): ModuleLocation((), (), 0, ())}
        _add_children(module, (), (), index)
        module.__dict__["_index"] = index
    return index


def unwrapped(child: Any) -> "Module":
    """Returns the module of a child, which a `StackedModule` may wrap."""
    inner: Module = child.module if isinstance(child, StackedModule) else child
    return inner


def _add_children(module: "Module", path: Path, stack: tuple[int, ...], index: Index) -> None:
    for steps, child in module.children():
        inner, here = unwrapped(child), (*path, *steps)
        around = (*stack, id(child)) if isinstance(child, StackedModule) else stack
        place = index.get(id(inner))
        if place is None:
            index[id(inner)] = ModuleLocation(here, steps, id(module), around)
            _add_children(inner, here, around, index)
        elif not _is_same_stack(child, place.stack, around):
            raise ModuleError(
                f"a {type(inner).__qualname__} is shared between {format_path(place.path)} and "
                f"{format_path(here)}, but one of them stacks copies of its state",
                where=format_path(here),
                hint="build a separate module for the StackedModule",
            )


def _is_same_stack(child: Any, first: tuple[int, ...], around: tuple[int, ...]) -> bool:
    """Whether a shared module's state, stacked as at its first place, fits this place too.

    A module that is not stacked may be used inside of a `StackedModule`, by each copy alike.
    """
    return first == around if isinstance(child, StackedModule) else first == around[: len(first)]
