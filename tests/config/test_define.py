"""What `@config` makes: values that are checked, frozen and independent of each other."""

import enum
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import pytest
from config_trees import NET, FeedForward, Linear, Net

from axcore.config import (
    REQUIRED,
    Configurable,
    config,
    evolve,
    immutabledict,
    is_config,
    render_config,
)
from axcore.errors import ConfigError


@config
class Every:
    flag: bool = False
    count: int = 0
    rate: float = 0.0
    word: str = ""
    kind: Literal["a", 1] = "a"
    pair: tuple[int, str] = (0, "")
    many: tuple[float, ...] = ()
    table: Mapping[str, tuple[int, ...]] = {}
    either: int | str | None = None
    number: float | int = 0
    function: Callable[..., Any] | None = None
    anything: Any = None


def test_int_fields_refuse_strings_and_containers_are_checked_inside() -> None:
    """No `int` field takes a string, and values within containers are checked, too."""
    wrong = {
        "flag": (1, "flag is 1; expected bool, got int"),
        "count": ("3", "count is '3'; expected int, got str"),
        "rate": ("0.1", "rate is '0.1'; expected float, got str"),
        "word": (3, "word is 3; expected str, got int"),
        "kind": (True, "kind is True; expected one of 'a', 1, got bool"),
        "pair": ((1, 2), r"pair\[1\] is 2; expected str, got int"),
        "many": ((1.0, None), r"many\[1\] is None; expected float, got NoneType"),
        "table": ({"a": [1, "2"]}, r'table\["a"\]\[1\] is \'2\'; expected int, got str'),
        "either": (0.5, r"either is 0.5; expected int \| str \| None, got float"),
        "function": (3, r"function is 3; expected .*Callable.*, got int"),
        "anything": (object, None),
    }
    for name, (value, message) in wrong.items():
        if message is None:
            assert getattr(Every(**{name: value}), name) is value
            continue
        with pytest.raises(ConfigError, match=message):
            Every(**{name: value})
    with pytest.raises(ConfigError) as caught:
        Every(count=True, word=None, many=3)
    assert caught.value.what.count("\n") == 2, "every problem is reported at once"
    assert caught.value.where == f"{__name__}:Every"
    assert "test_define.py" in str(caught.value.set_in)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (np.zeros(2), "ndarray"),
        (float("nan"), "float"),
        ({1, 2}, "set"),
        (b"x", "bytes"),
        (1j, "complex"),
        (2**5000, "int"),
        ({1: 2}, "int"),
    ],
    ids=["array", "nan", "set", "bytes", "complex", "huge", "int key"],
)
def test_what_is_no_value_is_refused(value: Any, got: str) -> None:
    with pytest.raises(ConfigError, match=rf"anything.* expected .*, got {got}$|got {got}\n"):
        Every(anything=value)


def test_a_mutable_default_does_not_leak_into_later_configs() -> None:
    """What one call makes of a default shows in no other call."""
    shared = {"a": [1]}

    @config
    class Holder:
        table: Mapping[str, tuple[int, ...]] = shared  # type: ignore[assignment]
        names: tuple[str, ...] = ["x"]  # type: ignore[assignment]

    before = Holder()
    shared["a"].append(2)
    shared["b"] = []
    assert Holder() == before
    assert Holder().table == {"a": (1,)}
    given = {"c": [3]}
    made = Holder(table=given)  # type: ignore[arg-type]
    given["c"].append(4)
    assert made.table == {"c": (3,)}
    with pytest.raises(TypeError):
        made.table["c"] = ()  # type: ignore[index]


def test_values_are_frozen_and_normalised() -> None:
    every = Every(rate=1, many=[1, 2], number=3, anything=[{"a": [1]}], word=np.str_("w"))
    assert repr(every.rate) == "1.0"
    assert every.many == (1.0, 2.0)
    assert repr(every.number) == "3"
    assert type(every.word) is str
    assert every.anything == (immutabledict(a=(1,)),)
    assert type(Every(rate=np.float64(0.5)).rate) is float
    assert repr(Every(rate=-0.0).rate) == "0.0"
    assert type(Every(count=enum.IntEnum("E", "A").A).count) is int
    with pytest.raises(AttributeError):
        every.rate = 2.0  # type: ignore[misc]


def test_configs_are_values() -> None:
    assert Net.Config(dim=4) == NET
    assert hash(NET) == hash(Net.Config(dim=4))
    assert Net.Config(dim=5) != NET
    assert len({NET, Net.Config(dim=4)}) == 1
    assert is_config(NET)
    assert not is_config(Net)
    assert Linear.Config() != Net.Config()
    assert repr(FeedForward.Config(dim=3)) == "FeedForward.Config(dim=3)"


def test_misspelt_missing_and_positional_arguments_are_named() -> None:
    @config
    class Needs:
        path: str
        size: int = 1

    with pytest.raises(ConfigError, match=r"no field 'dmi'; did you mean 'dim'\?"):
        Net.Config(dmi=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"no field 'dmi'; did you mean 'dim'\?"):
        evolve(NET, dmi=3)
    with pytest.raises(ConfigError, match="takes keyword arguments only"):
        Net.Config(3)  # type: ignore[misc]
    with pytest.raises(ConfigError, match="needs a value for 'path'"):
        Needs(size=2)  # type: ignore[call-arg]


def test_a_field_that_configs_cannot_hold_is_refused() -> None:
    @config
    class Odd:
        items: list[int] = []

    with pytest.raises(ConfigError, match=r"cannot be annotated list\[int\]; use scalars"):
        Odd()
    with pytest.raises(TypeError, match="the name is reserved"):

        @config
        class Reserved:
            build: int = 0


def test_a_config_must_be_decorated_and_inherit() -> None:
    with pytest.raises(TypeError, match=r"Config lacks the @config decorator"):

        class Bare(Configurable):
            class Config(Configurable.Config):
                pass

    with pytest.raises(TypeError, match=r"Config does not inherit from its base's Config"):

        class Alone(Configurable):
            @config
            class Config:
                pass


def test_a_class_without_a_config_of_its_own_can_be_told_apart() -> None:
    class Special(FeedForward):
        pass

    made = Special.Config(dim=2, hidden_dim=3).build()
    assert type(made) is Special
    assert isinstance(Special.Config(), FeedForward.Config)
    assert render_config(Special.Config(dim=2)) == "Special\ndim: 2\n"


def test_required_stands_in_a_field_of_any_type() -> None:
    assert Every(count=REQUIRED, many=(REQUIRED,)).many == (REQUIRED,)
