"""`REQUIRED`: the mark of a field that somebody else fills in; `OMITTED`: of one left to a call."""

from typing import Any, Final, NoReturn

from axcore.errors import ConfigError


class Required:
    """The type of `REQUIRED`; it has one instance, equal to nothing but itself."""

    _instance: "Required | None" = None

    def __new__(cls) -> "Required":  # noqa: D102 - part of the class
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return "REQUIRED"

    def __reduce__(self) -> str:
        return "REQUIRED"

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ConfigError(
            "a REQUIRED field was used before anybody filled it in",
            hint="set the field, or let the parent fill it: cfg.child.build(field=value)",
        )

    __bool__ = __int__ = __float__ = __index__ = __len__ = __iter__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __pow__ = __rpow__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = __call__ = _refuse
    __getitem__ = __contains__ = _refuse


REQUIRED: Final[Any] = Required()
"""A value still to be filled in. Never `None`, and neither true nor false: using it raises."""


class Omitted:
    """The type of `OMITTED`."""

    def __repr__(self) -> str:
        return "OMITTED"

    def __reduce__(self) -> str:
        return "OMITTED"


OMITTED: Final = Omitted()
"""An argument that `config_for` does not pass, as its default is nothing that a config can hold."""
