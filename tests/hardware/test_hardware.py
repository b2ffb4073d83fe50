"""Hardware as a value, its names, and the families that names and devices are looked up in."""

from types import SimpleNamespace

import pytest

from axcore.errors import PluginError
from axcore.hardware.families import detect_hardware, parse_target
from axcore.plugins import Hardware, HardwareFamily, Ref

DETECT = Ref("axl_acme.detect:detect")
X1 = Hardware(family="acme", generation="x1", chips=4, peak_flops={"bfloat16": 1e12})
X2 = Hardware(family="acme", generation="x2-big", chips=4, units_per_chip=2, devices_per_chip=2)
ACME = HardwareFamily(name="acme", hosts=(X1, X2), detect=DETECT, summary="", plugin="axl-acme")
X3 = Hardware(family="acme", generation="x3", chips=4, links_hosts=True)
SLICED = HardwareFamily(name="acme", hosts=(X3,), detect=DETECT, summary="", plugin="axl-acme")
DETECT_SOURCE = """
def detect(platform, device_kind):
    return {"Acme X1": "x1", "Acme X2": "x2-big", "Acme X3": "x3", "Acme X9": "x9"}.get(device_kind)
"""


def devices(kind: str, count: int, *, platform: str = "acme", per_host: int = 4):
    return [
        SimpleNamespace(platform=platform, device_kind=kind, process_index=index // per_host)
        for index in range(count)
    ]


def test_hardware_is_a_hashable_value():
    same, other = X1.resized(4), X1.resized(8)
    assert same == X1
    assert hash(same) == hash(X1)
    assert other != X1


def test_name_of_parsed_hardware_is_the_name_that_was_parsed():
    for name in ("cpu-1", "cpu-8"):
        assert Hardware.parse(name).name == name
    for name in ("acme-x1-2", "acme-x1-64", "acme-x2-big-16"):
        assert parse_target(name, [ACME]).name == name


def test_name_of_slices_counts_them_and_what_is_in_each():
    hardware = parse_target("acme-x3-2x8", [SLICED])
    assert hardware.name == "acme-x3-2x8"
    assert (hardware.slices, hardware.chips, hardware.num_hosts) == (2, 16, 4)
    assert hardware.linked_devices == 8
    assert parse_target("acme-x3-1x8", [SLICED]).name == "acme-x3-8"


def test_hosts_without_an_interconnect_among_them_are_no_slices():
    assert parse_target("acme-x1-16", [ACME]).linked_devices == 4
    with pytest.raises(PluginError, match="in hosts that a network joins"):
        parse_target("acme-x1-2x8", [ACME])


def test_family_may_be_left_out_where_one_alone_has_the_generation():
    assert parse_target("x2-big-16", [ACME]).name == "acme-x2-big-16"
    zeta = Hardware(family="zeta", generation="x1", chips=4)
    other = HardwareFamily(name="zeta", hosts=(zeta,), detect=DETECT, summary="")
    with pytest.raises(PluginError, match="'x1-8' may mean acme-x1-8 or zeta-x1-8"):
        parse_target("x1-8", [ACME, other])


def test_cpu_target_is_one_host_of_that_many_devices():
    hardware = Hardware.parse("cpu-8")
    assert (hardware.num_devices, hardware.num_hosts) == (8, 1)


def test_target_has_whole_hosts_of_its_generation():
    hardware = parse_target("acme-x1-64", [ACME])
    assert (hardware.chips, hardware.chips_per_host, hardware.num_hosts) == (64, 4, 16)
    assert hardware.peak_flops == {"bfloat16": 1e12}


def test_part_of_a_host_is_one_smaller_host():
    hardware = parse_target("acme-x1-2", [ACME])
    assert (hardware.chips_per_host, hardware.num_hosts) == (2, 1)


def test_number_in_a_name_counts_what_the_vendor_counts():
    hardware = parse_target("acme-x2-big-16", [ACME])
    assert (hardware.chips, hardware.num_devices) == (8, 16)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("acme-x1", r"does not end in a number.*"),
        ("acme-x1-0", r"target 'acme-x1-0' counts 0; expected 1 or more\n.*acme-x1-1"),
        ("acme-x1-six", r"does not end in a number"),
        ("acme-x3-8", r"no plugin knows target 'acme-x3-8'; did you mean 'acme-x1'"),
        ("zebra-8", r"no plugin knows target 'zebra-8'; known: acme-x1, acme-x2-big"),
        ("acme-x1-6", r"target 'acme-x1-6': 6 chips are not a whole number of hosts of 4"),
        ("acme-x2-big-3", r"counts 2 per chip, and 3 is not a multiple of that"),
    ],
)
def test_target_that_means_nothing_is_refused(name, text):
    with pytest.raises(PluginError, match=text):
        parse_target(name, [ACME])


def test_unknown_target_says_how_targets_are_named():
    with pytest.raises(PluginError, match=r"hint: .* acme-x2-big-8, or install the plugin for gpx"):
        parse_target("gpx-1", [ACME])


def test_devices_are_recognised_by_their_family(installed):
    installed.add("axl-acme", files={"detect.py": DETECT_SOURCE})
    assert detect_hardware(devices("Acme X1", 8), [ACME]) == parse_target("acme-x1-8", [ACME])


def test_devices_that_share_a_chip_are_counted_as_chips(installed):
    installed.add("axl-acme", files={"detect.py": DETECT_SOURCE})
    hardware = detect_hardware(devices("Acme X2", 16, per_host=8), [ACME])
    assert (hardware.chips, hardware.chips_per_host, hardware.num_hosts) == (8, 4, 2)


def test_hosts_that_show_fewer_devices_are_taken_as_they_are(installed):
    installed.add("axl-acme", files={"detect.py": DETECT_SOURCE})
    hardware = detect_hardware(devices("Acme X1", 6, per_host=3), [ACME])
    assert (hardware.chips, hardware.chips_per_host) == (6, 3)


def test_slices_are_counted_where_one_interconnect_joins_hosts(installed):
    installed.add("axl-acme", files={"detect.py": DETECT_SOURCE})
    found = devices("Acme X3", 16)
    for place, device in enumerate(found):
        device.slice_index = place // 8
    assert detect_hardware(found, [SLICED]) == parse_target("acme-x3-2x8", [SLICED])


def test_unknown_devices_are_described_as_unknown_with_no_figures(installed):
    installed.add("axl-acme", files={"detect.py": DETECT_SOURCE})
    hardware = detect_hardware(devices("Zebra", 2, platform="zoo"), [ACME])
    assert hardware.name == "zoo-unknown-2"
    assert not hardware.is_known
    assert not hardware.peak_flops


def test_detection_of_a_generation_not_described_names_the_plugin(installed):
    installed.add("axl-acme", files={"detect.py": DETECT_SOURCE})
    with pytest.raises(PluginError, match=r"'acme' of plugin 'axl-acme', returned 'x9'; exp"):
        detect_hardware(devices("Acme X9", 1), [ACME])


def test_devices_that_two_plugins_claim_are_refused(installed):
    installed.add("axl-acme", files={"detect.py": DETECT_SOURCE})
    other = HardwareFamily(
        name="acne",
        hosts=(Hardware(family="acne", generation="x1"),),
        detect=DETECT,
        summary="",
        plugin="axl-acne",
    )
    with pytest.raises(PluginError, match=r"claimed by acme \(axl-acme\) and acne \(axl-acne\)"):
        detect_hardware(devices("Acme X1", 1), [ACME, other])


def test_devices_of_this_process_are_host_processors():
    assert Hardware.detect() == Hardware.parse("cpu-16")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"family": ""}, "Hardware.family is ''"),
        ({"family": "acme", "chips": 0}, "Hardware.chips is 0; expected an int above 0"),
        ({"family": "acme", "chips": True}, "Hardware.chips is True; expected int"),
        ({"family": "acme", "peak_flops": 5}, "Hardware.peak_flops is 5; expected Mapping"),
        ({"family": "acme", "peak_flops": {"int8": "1"}}, "a mapping from str to float"),
        (
            {"family": "acme", "achievable_fraction": {"memory": 1.1}},
            "says memory=1.1; expected a share above 0",
        ),
        (
            {"family": "acme", "achievable_fraction": {"int8": 0.5}},
            "says int8=0.5; .* of memory, interconnect",
        ),
        (
            {"family": "acme", "achievable_fraction": {"memory/acme_copy": 0.5}},
            "says memory/acme_copy=0.5",
        ),
        ({"family": "acme", "memory_bytes": 1.5}, "Hardware.memory_bytes is 1.5"),
        ({"family": "acme", "features": 3}, "Hardware.features is 3; expected frozenset"),
        ({"family": "acme", "chips": 6, "chips_per_host": 4}, "not a whole number of hosts of 4"),
    ],
)
def test_hardware_of_wrong_values_is_refused(values, text):
    with pytest.raises(PluginError, match=text):
        Hardware(**values)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"name": "ac-me"}, "expected a name without '-'"),
        ({"hosts": ()}, "describes no generation"),
        ({"hosts": (Hardware(family="zoo"),)}, "expected Hardware of family 'acme'"),
        ({"hosts": (X1, X1)}, "names a generation twice"),
        ({"detect": "axl_acme.detect:detect"}, "HardwareFamily.detect is .*; expected Ref"),
    ],
)
def test_family_of_wrong_values_is_refused(values, text):
    with pytest.raises(PluginError, match=text):
        HardwareFamily(**{"name": "acme", "hosts": (X1,), "detect": DETECT, "summary": ""} | values)
