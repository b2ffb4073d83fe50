"""What benchmarks read of NVIDIA's assembly: the loop that multiplies, and what overlaps there."""

import importlib.util
from pathlib import Path

import pytest

SASS = Path(__file__).parents[2] / "benchmarks" / "_sass.py"


@pytest.fixture
def sass():
    spec = importlib.util.spec_from_file_location("_sass", SASS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOOP = """\
	.section	.text.kernel
kernel:
   -:-:-:Y:01        /*0000*/ LDC R1, c[0x0][0x28]
   -:-:-:-:12        /*0010*/ HGMMA.64x64x16.F32.BF16 R24, gdesc[UR48], R24, gsb0
.L_x_1:
   -:-:-:Y:02        /*0020*/ SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R2
   -:-:-:Y:05        /*0030*/ @!P1 BRA `(.L_x_1)
.L_x_2:
   -:-:-:-:12        /*0040*/ HGMMA.64x128x16.F32.BF16 R24, gdesc[UR48], R24
   -:-:-:-:12        /*0050*/ HGMMA.64x128x16.F32.BF16 R24, gdesc[UR48], R24, gsb0
   -:-:-:-:12        /*0060*/ HGMMA.64x64x16.F32.BF16 R88, R180, gdesc[UR16], R88, gsb0
   -:-:-:Y:02        /*0070*/ WARPGROUP.DEPBAR.LE gsb0, 0x1
   -:-:-:Y:01        /*0080*/ FMUL R25, R25, 0.5
   -:-:-:Y:06        /*0090*/ @!P2 BRA P3, `(.L_x_3)
   -:-:-:Y:02        /*00a0*/ FSEL R82, R82, -INF , P3
   -:-:-:Y:02        /*00b0*/ FSEL R83, R83, -INF , P3
.L_x_3:
   -:-:1:Y:08        /*00c0*/ MUFU.EX2 R26, R26
   -:-:-:Y:02        /*00d0*/ WARPGROUP.DEPBAR.LE gsb0, 0x0
   -:-:1:Y:08        /*00e0*/ MUFU.EX2 R27, R27
   -:-:-:Y:06        /*00f0*/ @P1 BRA `(.L_x_2)
   -:-:-:Y:01        /*0100*/ STL [R1], R27
   -:-:-:Y:05        /*0110*/ EXIT
"""


def test_the_cheapest_round_of_the_loop_that_multiplies_is_taken(sass):
    path = sass.Listing.of(LOOP).main_loop()
    kinds = [one.opcode.partition(".")[0] for one in path]
    assert kinds[:3] == ["HGMMA"] * 3
    assert kinds[3:] == ["WARPGROUP", "FMUL", "BRA", "MUFU", "WARPGROUP", "MUFU", "BRA"]
    figures = sass.round_figures(path)
    assert figures["issue_cycles"] == 12 * 3 + 2 + 1 + 6 + 8 + 2 + 8 + 6
    assert figures["product_cycles"] == 64 + 64 + 32


def test_what_runs_before_products_are_waited_for_is_under_them(sass):
    figures = sass.round_figures(sass.Listing.of(LOOP).main_loop())
    assert figures["under_products"] == [
        {"products": {"HGMMA.64x128x16": 2}, "instructions": 1, "exponentials": 0},
        {"products": {"HGMMA.64x64x16": 1}, "instructions": 4, "exponentials": 1},
    ]


def test_products_that_the_next_round_waits_for_are_under_its_beginning(sass):
    later = LOOP.replace("WARPGROUP.DEPBAR.LE gsb0, 0x0", "NOP")
    first, second = sass.round_figures(sass.Listing.of(later).main_loop())["under_products"]
    assert first["exponentials"] == 0
    assert (second["exponentials"], second["instructions"]) == (2, 9)


def test_spills_are_counted_and_a_kernel_without_products_has_no_main_loop(sass):
    listing = sass.Listing.of(LOOP.replace("HGMMA", "NOP"))
    assert listing.main_loop() == []
    assert listing.counts()["spills"] == 1
    assert listing.counts()["products"] == {}
