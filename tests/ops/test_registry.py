"""Kernels are chosen by pins, predicates, validation and band, and every choice explains itself."""

import re
from fnmatch import fnmatch

import attrs
import jax.numpy as jnp
import pytest

from axcore.config import apply_overrides
from axcore.errors import KernelError, PluginError
from axcore.ops import Call, KernelPolicy, choose, explain
from axcore.ops.dispatch import candidates, first_of, op_kernels, table
from axcore.plugins import Hardware, HardwareFamily, Kernel, Op, Ref, plugin_host, requires
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
    return Kernel(op="attention", name=name, priority=priority, forward=FN, plugin=plugin, **fields)


def nothing_supported(call):
    return f"takes widths of 128, not {call.shape('q')[-1]}"


def reason_of_a_wrong_type(call):
    return False


def reason_that_raises(call):
    return call.shape("k")


HERE = "tests_ops_registry"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Makes this file's functions reachable by a Ref."""
    import sys
    import types

    module = types.ModuleType(HERE)
    for function in (nothing_supported, reason_of_a_wrong_type, reason_that_raises):
        setattr(module, function.__name__, function)
    monkeypatch.setitem(sys.modules, HERE, module)


REFERENCE, PORTABLE = kernel("reference", 0), kernel("portable", 50)
FLASH = kernel("flash", 200, plugin="axl-acme", requires=requires(family="acme"))
PICKY = kernel(
    "picky",
    300,
    plugin="axl-acme",
    requires=requires(family="acme"),
    unsupported_reason=Ref(f"{HERE}:nothing_supported"),
)


LIBRARY = kernel(
    "library",
    200,
    plugin="axl-acme",
    requires=requires(family="acme"),
    validated_on=("acme-x1",),
)
FIRST = attrs.evolve(FLASH, preferred_to=("library",))


def choice(*kernels, hardware=ACME, **policy):
    given = KernelPolicy(hardware=hardware, **policy)
    return choose(CALL, given, kernels=kernels, families=(FAMILY,))


def test_highest_band_that_fits_is_chosen():
    assert choice(PICKY, FLASH, PORTABLE, REFERENCE).kernel == FLASH
    assert choice(PICKY, FLASH, PORTABLE, hardware=CPU).kernel == PORTABLE


def test_order_of_registration_means_nothing():
    assert choice(REFERENCE, PORTABLE, FLASH, PICKY).kernel == FLASH


def test_reference_runs_only_when_pinned():
    with pytest.raises(KernelError, match="no kernel can serve attention") as caught:
        choice(REFERENCE, hardware=CPU)
    assert "reference reference (core) fits; runs only when pinned: it defines" in str(caught.value)
    chosen = choice(PORTABLE, REFERENCE, hardware=CPU, pins={"attention": "reference"})
    assert (chosen.kernel, chosen.why) == (REFERENCE, "pinned")


def test_kernel_that_ran_on_the_chip_goes_before_one_that_never_did():
    chosen = choice(PORTABLE, attrs.evolve(FIRST, priority=300), LIBRARY)
    assert (chosen.kernel, chosen.why) == (LIBRARY, "validated on acme-x1")
    assert str(chosen) == (
        "attention: library (axl-acme), validated on acme-x1, on acme-x1-8; "
        "kernels.choice=fastest: flash"
    )


def test_fastest_asks_for_no_run_on_the_chip_and_says_what_the_default_takes():
    chosen = choice(FIRST, LIBRARY, PORTABLE, kernel_choice="fastest")
    assert chosen.kernel == FIRST
    assert str(chosen) == (
        "attention: flash (axl-acme), the first that fits, never run on acme-x1, on acme-x1-8; "
        "kernels.choice=validated: library"
    )


def test_run_on_another_chip_does_not_count():
    elsewhere = attrs.evolve(LIBRARY, validated_on=("acme-x2", "acme"))
    assert choice(FIRST, elsewhere, PORTABLE).kernel == FIRST
    everywhere = attrs.evolve(LIBRARY, validated_on=("acme-*",))
    assert choice(FIRST, everywhere).kernel == everywhere


@pytest.mark.parametrize("kernel_choice", ["validated", "fastest"])
def test_kernel_that_never_ran_serves_where_no_other_can_and_the_plan_says_so(kernel_choice):
    refusing = attrs.evolve(LIBRARY, unsupported_reason=PICKY.unsupported_reason)
    chosen = choice(FLASH, refusing, PORTABLE, kernel_choice=kernel_choice)
    assert chosen.kernel == FLASH
    assert (chosen.why, chosen.otherwise) == ("the first that fits, never run on acme-x1", None)


def test_portable_kernel_that_was_validated_on_the_chip_needs_no_leave():
    library = attrs.evolve(PORTABLE, validated_on=("*",))
    assert choice(FLASH, library).kernel == library
    assert choice(FLASH, library, kernel_choice="fastest").kernel == FLASH


def test_kernel_that_runs_only_when_pinned_is_never_chosen_and_forbids_no_portable():
    pinned = attrs.evolve(LIBRARY, pinned_only="trusts that rows are packed")
    for kernel_choice in ("validated", "fastest"):
        assert choice(pinned, PORTABLE, kernel_choice=kernel_choice).kernel == PORTABLE
    assert choice(pinned, PORTABLE, pins={"attention": "library"}).kernel == pinned
    with pytest.raises(KernelError, match="fits; runs only when pinned: trusts that rows are"):
        choice(pinned)


def test_priority_is_one_of_the_bands():
    with pytest.raises(PluginError, match=r"priority is 220; expected one of 0 \(reference\), 50"):
        kernel("flash", 220)


def test_tie_names_the_pins_to_write():
    rival = kernel("bolt", 200, plugin="axl-bolt")
    with pytest.raises(KernelError) as caught:
        choice(FLASH, rival, PORTABLE)
    text = str(caught.value)
    assert (
        "flash (plugin axl-acme) and bolt (plugin axl-bolt) are both of the band 'hardware'" in text
    )
    assert 'pin one: pins={"attention": "flash"} or pins={"attention": "bolt"}' in text
    assert "; of a trainer: --set \"kernels.pins={'attention': 'flash'}\" or --set" in text
    assert choice(FLASH, rival, pins={"attention": "bolt"}).kernel == rival


def test_pin_to_an_unknown_kernel_suggests_the_known():
    with pytest.raises(
        KernelError, match=r"pinned to 'flahs', which is not a kernel of it.*'flash'"
    ):
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
    assert "picky     generation (axl-acme) no: takes widths of 128, not 96" in text
    assert "portable  portable   (core) fits" in text
    assert 'allow=("portable",); of a trainer: --set' in text
    assert "--set \"kernels.allow=('portable',)\"" in text


@pytest.mark.parametrize(
    "kernels",
    [(FLASH, kernel("bolt", 200)), (PICKY, PORTABLE)],
    ids=["tie", "silent_fallback"],
)
def test_what_a_hint_says_can_be_typed_and_helps(kernels):
    with pytest.raises(KernelError) as caught:
        choice(*kernels)
    typed = re.findall(r'--set "([^"]*)"', caught.value.hint)
    assert typed
    for text in typed:
        cfg = apply_overrides(Trainer.Config(), [text])
        chosen = choice(*kernels, pins=cfg.kernels.pins, allow=cfg.kernels.allow).kernel
        assert repr(chosen.name) in text


def test_fallback_that_is_allowed_by_name_is_taken():
    assert choice(PICKY, PORTABLE, allow=("portable",)).kernel == PORTABLE
    with pytest.raises(KernelError, match="portable is not allowed"):
        choice(PICKY, PORTABLE, allow=("something",))


def test_where_the_plugin_has_kernels_for_other_chips_alone_the_portable_serves_and_says_so():
    other = kernel("other", 300, plugin="axl-acme", requires=requires(generation="x2"))
    chosen = choice(other, PORTABLE)
    assert str(chosen) == (
        "attention: portable (core), not tuned for acme-x1: other is for other chips, on acme-x1-8"
    )
    with pytest.raises(KernelError, match="portable is not allowed"):
        choice(other, PICKY, PORTABLE)


def test_kernels_for_other_hardware_do_not_forbid_the_portable():
    foreign = kernel("foreign", 200, plugin="axl-bolt", requires=requires(family="bolt"))
    assert choice(foreign, PORTABLE).kernel == PORTABLE


def test_accepts_that_answers_wrongly_blames_its_plugin():
    wrong = kernel(
        "wrong", 200, plugin="axl-acme", unsupported_reason=Ref(f"{HERE}:reason_of_a_wrong_type")
    )
    with pytest.raises(
        PluginError, match="`unsupported_reason` of kernel attention/wrong returned False"
    ):
        choice(wrong, PORTABLE)


def test_accepts_that_raises_keeps_its_error_and_gains_a_note():
    broken = kernel(
        "broken", 200, plugin="axl-acme", unsupported_reason=Ref(f"{HERE}:reason_that_raises")
    )
    with pytest.raises(KernelError, match="has no array 'k'") as caught:
        choice(broken, PORTABLE)
    assert caught.value.__notes__ == [
        "in `unsupported_reason` of kernel attention/broken of plugin 'axl-acme'"
    ]


def test_table_has_a_line_for_every_kernel_and_marks_the_chosen():
    found = candidates(CALL, ACME, (PICKY, FLASH, REFERENCE))
    assert table(found, chosen=FLASH).splitlines() == [
        "  picky     generation (axl-acme) no: takes widths of 128, not 96",
        "* flash     hardware   (axl-acme) fits",
        "  reference reference  (core) fits; runs only when pinned: it defines what the op means",
    ]


def test_what_records_say_of_each_other_and_of_chips_is_about_something():
    kernels = plugin_host().records(Kernel)
    bands = {(one.op, one.name): one.band for one in kernels}
    families = plugin_host().records(HardwareFamily)
    chips = [host.chip for family in families for host in family.hosts]
    for one in kernels:
        assert {bands.get((one.op, name)) for name in one.preferred_to} <= {one.band}, one.key
        for glob in one.validated_on:
            assert any(fnmatch(chip, glob) for chip in chips), (one.key, glob)


@pytest.mark.parametrize("kernel_choice", ["validated", "fastest"])
def test_no_typical_call_is_a_tie_on_any_chip(kernel_choice):
    for op in plugin_host().records(Op):
        call = None if op.arg_spec is None else op.arg_spec.resolve()()
        for family in plugin_host().records(HardwareFamily):
            for host in family.hosts if call is not None else ():
                found = candidates(call, host, op_kernels(op.name))
                assert len(first_of(found, host, kernel_choice)) == 1, (op.name, host.name)


def test_explain_lists_the_cores_kernels():
    text = explain(attrs.evolve(CALL, op="cross_entropy"), CPU)
    assert re.search(r"portable +portable +\(core\) fits\n", text)
    assert re.search(r"reference +reference +\(core\) fits; runs only when pinned", text)


def test_call_is_a_value_that_reads_like_a_call():
    same = Call(op=CALL.op, shapes=CALL.shapes, dtypes=CALL.dtypes, features=CALL.features)
    assert hash(same) == hash(CALL)
    assert str(CALL) == "attention(q bfloat16[2,64,4,96], right=0)"


def test_the_gradient_goes_with_its_forward_kernel_unless_it_cannot_or_another_is_pinned():
    call = attrs.evolve(CALL, op="attention_backward")
    ours = kernel("ours", 200, backward=FN, pinned_only="never run").halves[1]
    portable = attrs.evolve(PORTABLE, op=ours.op)
    kernels, policy = (ours, portable), KernelPolicy(hardware=CPU)
    assert (ours.op, ours.name, ours.backward) == ("attention_backward", "ours", None)

    def chosen(kernels=kernels, policy=policy):
        return choose(call, policy, partner="ours", kernels=kernels, families=()).kernel.name

    assert chosen() == "ours"
    pins = {"attention_backward": "portable"}
    assert chosen(policy=attrs.evolve(policy, pins=pins)) == "portable"
    elsewhere = attrs.evolve(ours, requires=requires(family="acme"))
    assert chosen(kernels=(elsewhere, portable)) == "portable"


def test_a_kernel_with_a_gradient_of_its_own_names_no_backward_function():
    with pytest.raises(PluginError, match="is differentiable and has a backward function"):
        kernel("both", 200, backward=FN, is_differentiable=True)


def test_a_call_is_asked_for_what_its_op_knows_alone():
    call = Call.of("attention", {"q_BTNH": jnp.ones(3), "bias": None}, {"scale": 1.0})
    assert (call.has("q_BTNH"), call.has("bias")) == (True, False)
    with pytest.raises(KernelError, match=r"no array 'bias_BNTS'; did you mean 'bias'"):
        call.has("bias_BNTS")
    with pytest.raises(KernelError, match="no feature 'scales'; did you mean 'scale'"):
        call.feature("scales")
