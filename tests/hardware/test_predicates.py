"""Predicates on hardware: reasons in words, and values that compare."""

import pytest

from axcore.errors import PluginError
from axcore.plugins import Hardware, Kernel, Ref, requires

X1 = Hardware(family="acme", generation="x1", chips=8, features={"matrix", "fp8"})


def test_predicate_that_holds_gives_none():
    holds = requires(family=("acme", "zoo"), generation="x1", features={"matrix"})
    assert holds(X1) is None
    assert requires()(X1) is None


@pytest.mark.parametrize(
    ("predicate", "reason"),
    [
        (requires(family="zoo"), "wants family zoo, not acme-x1-8"),
        (requires(family=("zoo", "abc")), "wants family abc or zoo, not acme-x1-8"),
        (
            requires(family="acme", generation=("x3", "x2")),
            "wants generation x2 or x3, not acme-x1-8",
        ),
        (
            requires(features=("fp4", "matrix", "ab")),
            "wants ab, fp4, which acme-x1-8 does not have",
        ),
    ],
)
def test_predicate_that_fails_gives_the_reason(predicate, reason):
    assert predicate(X1) == reason


def test_predicates_that_say_the_same_are_equal_and_hash_alike():
    one, other = (
        requires(family=["a", "b"], features="x"),
        requires(family=("b", "a"), features={"x"}),
    )
    assert one == other
    assert hash(one) == hash(other)
    assert requires(family="a") != requires(family="b")


def test_predicate_reads_as_words():
    assert str(requires(family="acme", features="fp8")) == "acme with fp8"
    assert str(requires()) == "any"


def test_predicate_of_something_else_than_names_is_refused():
    with pytest.raises(PluginError, match="expected a name, got int"):
        requires(family=[3])


def kernel(predicate) -> Kernel:
    ref = Ref("a:b")
    return Kernel(
        op="attention", name="k", priority=200, forward=ref, requires=predicate, plugin="axl-acme"
    )


def test_predicate_that_raises_is_noted_with_kernel_and_plugin():
    with pytest.raises(ZeroDivisionError) as raised:
        kernel(lambda hardware: 1 / 0).unsupported_hardware_reason(X1)
    assert raised.value.__notes__ == [
        "in `requires` of kernel attention/k of plugin 'axl-acme'; "
        "set AXCORE_BLOCK=axl-acme to run without it"
    ]


@pytest.mark.parametrize("answer", [True, False, "", 3])
def test_predicate_that_answers_neither_none_nor_a_reason_is_refused(answer):
    with pytest.raises(PluginError, match=f"returned {answer!r}; expected None or a reason"):
        kernel(lambda hardware: answer).unsupported_hardware_reason(X1)
