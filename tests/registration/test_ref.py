"""References that lead somewhere, and what is said of those that do not."""

import sys

import pytest

from axcore.errors import PluginError
from axcore.plugins import Ref


def test_ref_resolves_to_the_object_it_names():
    assert Ref("collections.abc:Mapping.get").resolve() is __import__("collections").abc.Mapping.get


def test_making_a_ref_imports_nothing(installed):
    installed.add("axl-acme", files={"flash.py": "raise SystemExit('imported')"})
    Ref("axl_acme.flash:forward")
    assert "axl_acme" not in sys.modules


@pytest.mark.parametrize("target", ["axl_acme.flash", "a:b:c", ":x", "a:", "a b:c", "", 3])
def test_misshapen_target_is_refused(target):
    with pytest.raises(PluginError, match=r"expected 'package\.module:name'"):
        Ref(target)


def test_ref_to_no_module_names_the_module_and_the_plugin(installed):
    installed.add("axl-acme")
    ref = Ref("axl_acme.flsh:forward", plugin="axl-acme")
    with pytest.raises(PluginError, match=r"plugin 'axl-acme' .* no module 'axl_acme\.flsh'"):
        ref.resolve()


def test_ref_to_no_name_says_what_is_near(installed):
    installed.add("axl-acme", files={"flash.py": "def forward(): ..."})
    ref = Ref("axl_acme.flash:foward", plugin="axl-acme")
    with pytest.raises(
        PluginError, match=r"no 'foward' in axl_acme\.flash; did you mean 'forward'\?"
    ):
        ref.resolve()


def test_missing_dependency_of_the_module_is_not_called_a_wrong_ref(installed):
    installed.add("axl-acme", files={"flash.py": "import no_such_package"})
    with pytest.raises(PluginError, match="needs 'no_such_package', and that is not installed"):
        Ref("axl_acme.flash:forward").resolve()


def test_what_the_module_raises_keeps_its_type_and_gains_a_note(installed):
    installed.add("axl-acme", files={"flash.py": "1 / 0"})
    with pytest.raises(ZeroDivisionError) as raised:
        Ref("axl_acme.flash:forward", plugin="axl-acme").resolve()
    assert raised.value.__notes__ == [
        "while resolving 'axl_acme.flash:forward' of plugin 'axl-acme'; "
        "set AXCORE_BLOCK=axl-acme to run without it"
    ]


def test_who_brought_a_ref_is_no_part_of_its_value():
    assert Ref("a:b", plugin="x") == Ref("a:b", plugin="y")
    assert hash(Ref("a:b", plugin="x")) == hash(Ref("a:b"))
