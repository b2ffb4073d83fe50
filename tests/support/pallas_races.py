"""A Pallas TPU interpreter that watches for races, and a check that it found none."""

from jax.experimental.pallas import tpu as pltpu

CAREFUL = pltpu.InterpretParams(
    detect_races=True, out_of_bounds_reads="raise", uninitialized_memory="nan"
)
"""Refuses reads out of bounds, fills new memory with NaN, and prints what two threads race for."""

MESSAGE = "RACE DETECTED"


def check_no_race_was_printed(capsys):
    printed = capsys.readouterr()
    assert MESSAGE not in printed.out + printed.err
