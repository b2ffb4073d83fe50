"""Which mesh rule a config gets on some hardware."""

from typing import Any

import pytest

from axcore.config import config, from_json, to_json
from axcore.errors import AxcoreError, PluginError
from axcore.plugins import Hardware, MeshRule, find_mesh_rule, plugin_host

X1 = Hardware(family="acme", generation="x1", chips=8)


@config
class Twice:
    """A modifier, as far as a rule needs one."""

    factor: int = 2

    def apply(self, cfg: Any, hardware: Hardware) -> Any:
        """Returns `cfg` times the factor."""
        return cfg * self.factor


def rule(match: str, plugin: str = "") -> MeshRule:
    return MeshRule(match=match, mesh={"fsdp": -1}, plugin=plugin)


def test_experiments_own_rules_come_first_in_order():
    own = [rule("zoo-*"), rule("*"), rule("acme-x1-8")]
    assert find_mesh_rule(X1, own=own, brought=[rule("acme-x1-8", "axl-acme")]) is own[1]


def test_most_specific_rule_of_plugins_wins_whatever_their_order():
    brought = [rule("acme-*", "a"), rule("acme-x1-*", "b"), rule("*", "c")]
    for order in (brought, brought[::-1]):
        assert find_mesh_rule(X1, brought=order).plugin == "b"


def test_equally_specific_rules_are_refused_naming_both_and_the_hint():
    brought = [rule("acme-x?-8", "axl-b"), rule("acme-?1-8", "axl-a")]
    with pytest.raises(
        PluginError, match=r"acme-\?1-8 \(axl-a\) and acme-x\?-8 \(axl-b\) match acme-x1-8 equally"
    ):
        find_mesh_rule(X1, brought=brought)


def test_no_match_shows_what_was_tried_in_order():
    with pytest.raises(PluginError) as refused:
        find_mesh_rule(X1, own=[rule("zoo-*")], brought=[rule("acme-x2-*", "axl-acme")])
    assert refused.value.what == (
        "no mesh rule matches acme-x1-8; tried, in order: "
        "zoo-* (the experiment), acme-x2-* (axl-acme)"
    )
    assert "MeshRule(match='acme-x1-8'" in (refused.value.hint or "")


def test_match_is_of_the_whole_name_and_its_case():
    for pattern in ("acme", "x1", "ACME-*"):
        assert not rule(pattern).matches(X1)


def test_rule_is_a_config_value_that_can_be_saved():
    saved = MeshRule(match="acme-*", mesh={"data": -1, "fsdp": 8}, modifiers=[Twice(factor=3)])
    assert from_json(to_json(saved)) == saved
    assert hash(from_json(to_json(saved))) == hash(saved)


def test_rule_of_wrong_values_is_refused():
    with pytest.raises(AxcoreError, match=r"mesh.*'x'.*expected int, got str"):
        MeshRule(match="acme-*", mesh={"fsdp": "x"})


def test_core_has_a_rule_for_host_processors():
    found = find_mesh_rule(Hardware.parse("cpu-8"), brought=plugin_host().records(MeshRule))
    assert (found.plugin, found.mesh) == ("core", {"fsdp": -1})
