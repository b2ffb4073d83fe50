"""`config_for`: calls of other libraries as configs."""

import functools
import pickle
from typing import Any

import numpy as np
import optax
import pytest

from axcore.config import (
    REQUIRED,
    config_for,
    evolve,
    from_dict,
    render_config,
    replace_config,
    to_dict,
    update_config,
)
from axcore.errors import ConfigError

TABLE = np.arange(3)


def add(left: Any, right: Any = 2, *, table: Any = TABLE, parts: Any = None) -> Any:
    return left, right, table, parts


def with_positional(x: int, /) -> None: ...


def with_build(build: int = 0) -> None: ...


class Thing:
    def __init__(self, size: int = 3) -> None:
        self.size = size


def test_a_call_is_made_with_nested_configs_built() -> None:
    cfg = config_for(add, left=config_for(Thing, size=1), parts={"a": [config_for(Thing, size=2)]})
    left, right, table, parts = cfg.build()
    assert (left.size, right) == (1, 2)
    assert parts["a"][0].size == 2
    assert table is add.__kwdefaults__["table"], "a default that no config can hold is left alone"


def test_parameters_without_a_default_are_required() -> None:
    assert config_for(add).left is REQUIRED
    with pytest.raises(ConfigError, match=r"add lacks 1 required field:\n  left"):
        config_for(add).build()
    assert config_for(add).build(left=5)[0] == 5


def test_calls_are_edited_like_any_config() -> None:
    cfg = config_for(add, left=config_for(Thing))
    assert update_config(cfg, {"left.size": 7}).left.size == 7
    assert replace_config(cfg, Thing, config_for(add), missing_ok=True) == cfg
    assert render_config(cfg) == "add\nleft: Thing\n"
    assert evolve(cfg, right=3) != cfg
    with pytest.raises(ConfigError, match=r"add has no field 'lefd'; did you mean 'left'\?"):
        config_for(add, lefd=1)


def test_a_call_whose_defaults_no_config_can_hold_is_saved_and_pickled() -> None:
    cfg = config_for(add, left=1)
    assert pickle.loads(pickle.dumps(cfg)) == cfg
    assert to_dict(cfg)["fields"] == {"left": 1}


def test_what_cannot_be_called_by_keyword_and_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes 'x' by position only"):
        config_for(with_positional)
    with pytest.raises(ConfigError, match="has a parameter that is not a name for a field"):
        config_for(with_build)
    with pytest.raises(ConfigError, match=r"cannot be named as module:name"):
        config_for(lambda x: x)
    with pytest.raises(ConfigError, match=r"cannot be named as module:name"):
        config_for(functools.partial(add, 1))
    with pytest.raises(ConfigError, match=r"expected a function or class|a config value"):
        config_for(add, left=functools.partial(add, 1))


def test_an_optimizer_of_optax_round_trips_and_builds() -> None:
    cfg = config_for(
        optax.adamw,
        learning_rate=config_for(optax.cosine_decay_schedule, init_value=0.1, decay_steps=10),
    )
    again = from_dict(to_dict(cfg))
    assert again == cfg
    state = again.build().init({"w": np.zeros(2, np.float32)})
    assert state
