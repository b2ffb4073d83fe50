"""Compiled programs are kept where nobody says otherwise, and take bounded space."""

import os

import pytest

from axcore.resilience.compile_cache import remove_oldest


@pytest.mark.parametrize(("most", "left"), [(30, "abc"), (29, "bc"), (10, "c"), (0, "")])
def test_programs_that_were_not_used_for_longest_are_removed_first(tmp_path, most, left):
    for age, name in ((30, "a"), (20, "b"), (10, "c")):
        (tmp_path / name).write_bytes(bytes(10))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - 100))
    remove_oldest(tmp_path, most)
    assert "".join(sorted(os.listdir(tmp_path))) == left


def test_a_folder_that_is_not_there_stays_so(tmp_path):
    remove_oldest(tmp_path / "none", 10)
    assert not (tmp_path / "none").exists()
