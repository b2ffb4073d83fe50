"""Kernels are chosen by pins, predicates and priority, and every choice explains itself."""

import re

import attrs
import pytest

from axcore.config import apply_overrides
from axcore.errors import KernelError, PluginError
from axcore.ops import Call, KernelPolicy, choose, explain
from axcore.ops.registry import candidates, table
from axcore.plugins import Hardware, HardwareFamily, Kernel, Ref, on
from axcore.trainer import Trainer

ACME, CPU = Hardware(family="acme", generation="x1", chips=8), Hardware(family="cpu")
FN = Ref("builtins:print")
CALL = Call(
    op="attention",
    shapes=(("q", (2, 64, 4, 96)),),
    dtypes=(("q", "bfloat16"),),
    features=(("right", 0), ("soft_cap", None), ("lse", False)),
)
FAMILY = attrs.evolve(
    HardwareFamily(name="acme", hosts=(ACME,), detect=Ref("builtins:print"), summary=""),
    plugin="axl-acme",
)


def kernel(name, priority, *, plugin="core", **fields):
    return Kernel(op="attention", name=name, priority=priority, fn=FN, plugin=plugin, **fields)


def accepts_nothing(call):
    return f"takes widths of 128, not {call.shape('q')[-1]}"


def accepts_wrongly(call):
    return False


def accepts_and_raises(call):
    return call.shape("k")


HERE = "tests_ops_registry"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Makes this file's functions reachable by a Ref."""
    import sys
    import types

    module = types.ModuleType(HERE)
    for function in (accepts_nothing, accepts_wrongly, accepts_and_raises):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, HERE, module)


REFERENCE, PORTABLE = kernel("reference", 0), kernel("portable", 50)
FLASH = kernel("flash", 200, plugin="axl-acme", on=on(family="acme"))
PICKY = kernel(
    "picky", 300, plugin="axl-acme", on=on(family="acme"), accepts=Ref(f"{HERE}:accepts_nothing")
)


def choice(*kernels, hardware=ACME, **policy):
    given = KernelPolicy(hardware=hardware, **policy)
    return choose(CALL, given, kernels=kernels, families=(FAMILY,))


def test_highest_priority_that_fits_is_chosen():
    assert choice(PICKY, FLASH, PORTABLE, REFERENCE).kernel == FLASH
    assert choice(PICKY, FLASH, PORTABLE, hardware=CPU).kernel == PORTABLE


def test_order_of_registration_means_nothing():
    assert choice(REFERENCE, PORTABLE, FLASH, PICKY).kernel == FLASH


def test_reference_runs_only_when_pinned():
    with pytest.raises(KernelError, match="no kernel can serve attention") as caught:
        choice(REFERENCE, hardware=CPU)
    assert "reference (core) fits; runs only when pinned" in str(caught.value)
    chosen = choice(PORTABLE, REFERENCE, hardware=CPU, pins={"attention": "reference"})
    assert (chosen.kernel, chosen.why) == (REFERENCE, "pinned")


def test_tie_names_the_pins_to_write():
    rival = kernel("bolt", 200, plugin="axl-bolt")
    with pytest.raises(KernelError) as caught:
        choice(FLASH, rival, PORTABLE)
    text = str(caught.value)
    assert "flash (plugin axl-acme) and bolt (plugin axl-bolt) both have priority 200" in text
    assert 'pin one: pins={"attention": "flash"} or pins={"attention": "bolt"}' in text
    assert "; of a trainer: --set \"kernels={'attention': 'flash'}\" or --set" in text
    assert choice(FLASH, rival, pins={"attention": "bolt"}).kernel == rival


def test_pin_to_an_unknown_kernel_suggests_the_known():
    with pytest.raises(KernelError, match=r"pinned to 'flahs', which is no kernel of it.*'flash'"):
        choice(FLASH, PORTABLE, pins={"attention": "flahs"})
    with pytest.raises(KernelError, match=r"pin one: pins={\"attention\": \"flash\"} or"):
        choice(FLASH, PORTABLE, pins={"attention": "flahs"})


def test_pin_to_a_kernel_that_cannot_serve_gives_its_reason():
    with pytest.raises(
        KernelError, match="pinned to picky, which cannot serve attention"
    ) as caught:
        choice(PICKY, PORTABLE, pins={"attention": "picky"})
    assert "takes widths of 128, not 96" in str(caught.value)
    with pytest.raises(KernelError, match="wants family acme"):
        choice(FLASH, PORTABLE, hardware=CPU, pins={"attention": "flash"})


def test_fallback_behind_a_hardware_plugin_is_refused_with_all_reasons():
    with pytest.raises(KernelError) as caught:
        choice(PICKY, PORTABLE, REFERENCE)
    text = str(caught.value)
    assert "none of the kernels installed for acme-x1-8 can serve attention(q bfloat16" in text
    assert "300 picky     (axl-acme) no: takes widths of 128, not 96" in text
    assert " 50 portable  (core) fits" in text
    assert 'allow=("portable",); of a trainer: --set' in text
    assert "--set \"allow_kernels=('portable',)\"" in text


@pytest.mark.parametrize(
    "kernels",
    [(FLASH, kernel("bolt", 200)), (PICKY, PORTABLE)],
    ids=["tie", "silent_fallback"],
)
def test_what_a_mend_says_can_be_typed_and_mends(kernels):
    with pytest.raises(KernelError) as caught:
        choice(*kernels)
    typed = re.findall(r'--set "([^"]*)"', caught.value.mend)
    assert typed
    for text in typed:
        cfg = apply_overrides(Trainer.Config(), [text])
        chosen = choice(*kernels, pins=cfg.kernels, allow=cfg.allow_kernels).kernel
        assert repr(chosen.name) in text


def test_fallback_that_is_allowed_by_name_is_taken():
    assert choice(PICKY, PORTABLE, allow=("portable",)).kernel == PORTABLE
    with pytest.raises(KernelError, match="portable is not allowed"):
        choice(PICKY, PORTABLE, allow=("something",))


def test_other_generation_of_the_plugins_own_family_counts_as_hardware_kernel():
    other = kernel("other", 300, plugin="axl-acme", on=on(generation="x2"))
    with pytest.raises(KernelError, match="wants generation x2, not acme-x1-8"):
        choice(other, PORTABLE)


def test_kernels_for_other_hardware_do_not_forbid_the_portable():
    foreign = kernel("foreign", 200, plugin="axl-bolt", on=on(family="bolt"))
    assert choice(foreign, PORTABLE).kernel == PORTABLE


def test_accepts_that_answers_wrongly_blames_its_plugin():
    wrong = kernel("wrong", 200, plugin="axl-acme", accepts=Ref(f"{HERE}:accepts_wrongly"))
    with pytest.raises(PluginError, match="`accepts` of kernel attention/wrong returned False"):
        choice(wrong, PORTABLE)


def test_accepts_that_raises_keeps_its_error_and_gains_a_note():
    broken = kernel("broken", 200, plugin="axl-acme", accepts=Ref(f"{HERE}:accepts_and_raises"))
    with pytest.raises(KeyError) as caught:
        choice(broken, PORTABLE)
    assert caught.value.__notes__ == [
        "in `accepts` of kernel attention/broken of plugin 'axl-acme'"
    ]


def test_table_has_a_line_for_every_kernel_and_marks_the_chosen():
    found = candidates(CALL, ACME, (PICKY, FLASH, REFERENCE))
    assert table(found, chosen=FLASH).splitlines() == [
        "  300 picky     (axl-acme) no: takes widths of 128, not 96",
        "* 200 flash     (axl-acme) fits",
        "    0 reference (core) fits; runs only when pinned",
    ]


def test_explain_lists_the_cores_kernels():
    text = explain(attrs.evolve(CALL, op="cross_entropy"), CPU)
    assert re.search(r"50 portable +\(core\) fits\n", text)
    assert re.search(r"0 reference +\(core\) fits; runs only when pinned", text)


def test_call_is_a_value_that_reads_like_a_call():
    same = Call(op=CALL.op, shapes=CALL.shapes, dtypes=CALL.dtypes, features=CALL.features)
    assert hash(same) == hash(CALL)
    assert str(CALL) == "attention(q bfloat16[2,64,4,96], right=0)"
