"""The tree of modules: where each stands, so that a call finds its state, key and name."""

from typing import TYPE_CHECKING, Any

from axcore.errors import ModuleError
from axcore.module.context import Index, Place
from axcore.module.lift import Repeated
from axcore.module.streams import Path, format_path

if TYPE_CHECKING:
    from axcore.module.module import Module


def index_of(module: "Module") -> Index:
    """Returns the places of all modules of a tree; a shared one stands where it comes first.

    Raises:
        ModuleError: A module that is stacked by a `Repeated` is shared with what is outside of it.
    """
    index: Index | None = module.__dict__.get("_index")
    if index is None:
        index = {id(module): Place((), (), 0, ())}
        _add_children(module, (), (), index)
        module.__dict__["_index"] = index
    return index


def unwrapped(child: Any) -> "Module":
    """Returns the module of a child, which a `Repeated` may wrap."""
    inner: Module = child.module if isinstance(child, Repeated) else child
    return inner


def _add_children(module: "Module", path: Path, stack: tuple[int, ...], index: Index) -> None:
    for steps, child in module.children():
        inner, here = unwrapped(child), (*path, *steps)
        around = (*stack, id(child)) if isinstance(child, Repeated) else stack
        place = index.get(id(inner))
        if place is None:
            index[id(inner)] = Place(here, steps, id(module), around)
            _add_children(inner, here, around, index)
        elif not _is_same_stack(child, place.stack, around):
            raise ModuleError(
                f"a {type(inner).__qualname__} is shared between {format_path(place.path)} and "
                f"{format_path(here)}, but one of them stacks copies of its state",
                where=format_path(here),
                mend="build a module of its own for the Repeated",
            )


def _is_same_stack(child: Any, first: tuple[int, ...], around: tuple[int, ...]) -> bool:
    """Whether a shared module's state, stacked as where it stands first, fits this place too.

    A module that is not stacked may be used inside of a `Repeated`, by each copy alike.
    """
    return first == around if isinstance(child, Repeated) else first == around[: len(first)]
