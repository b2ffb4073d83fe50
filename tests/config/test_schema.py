"""The JSON Schema of a config takes the files that axcore takes, and finds what is wrong."""

import json

import jsonschema
import pytest

import axcore as ax
from axcore.config import REQUIRED, config, to_dict
from axcore.config.define import field_docs
from axcore.config.schema import json_schema


def validator(cfg):
    schema = json.loads(json.dumps(json_schema(cfg)))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(scope="module")
def tiny():
    cfg = ax.experiment("tiny")
    return cfg, validator(cfg)


@pytest.mark.parametrize("name", ["tiny", "mixtral-8x7b"])
def test_an_experiment_fits_its_own_schema(name):
    cfg = ax.experiment(name)
    assert validator(cfg).is_valid(to_dict(cfg))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("max_step",), 3),
        (("max_steps",), "3"),
        (("model", "vocab_size"), 0),
        (("model", "decoder", "stack", "layer", "feed_forward", "activation"), "sine"),
        (("learner", "schedule"), 3),
        (("data", "source", "folder_"), "texts"),
        (("type",), 3),
    ],
)
def test_what_does_not_fit_is_found(tiny, path, value):
    cfg, of_tiny = tiny
    data = to_dict(cfg)
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert not of_tiny.is_valid(data)


def test_classes_that_the_tree_does_not_hold_are_left_to_axcore(tiny):
    cfg, of_tiny = tiny
    data = {**to_dict(cfg), "learner": {"type": "axl_acme.learner:Learner.Config", "rate": 3}}
    assert of_tiny.is_valid(data)


@config
class Described:
    """Has fields with docs.

    Args:
        size: How large it is,
            in metres.
        name: What it is called.

    Raises:
        other: No field.
    """

    size: int = REQUIRED
    name: str = ""


@config
class Inherits(Described):
    """Says another thing of one.

    Args:
        name: Its other name.
    """


def test_docs_of_fields_are_those_of_the_nearest_class():
    size = {"size": "How large it is, in metres."}
    assert field_docs(Described) == {**size, "name": "What it is called."}
    assert field_docs(Inherits) == {**size, "name": "Its other name."}
