"""The validation split depends on a document's name, and on nothing else."""

import subprocess
import sys

import pytest

from axcore.data.document import is_validation

NAMES = [f"folder/{i}.py" for i in range(2000)]


@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5])
def test_the_fraction_held_out_is_near_the_fraction_asked_for(fraction):
    count = sum(is_validation(name, fraction) for name in NAMES)
    deviation = (len(NAMES) * fraction * (1 - fraction)) ** 0.5
    assert abs(count - len(NAMES) * fraction) < 4 * deviation


def test_a_larger_fraction_only_adds_documents():
    small = {name for name in NAMES if is_validation(name, 0.05)}
    large = {name for name in NAMES if is_validation(name, 0.10)}
    assert small < large


def test_no_document_is_held_out_of_fraction_zero():
    assert not any(is_validation(name, 0.0) for name in NAMES)


HELD_OF_THE_FIRST_60 = ["folder/6.py", "folder/13.py", "folder/17.py", "folder/37.py"]


def test_the_split_is_the_same_for_ever():
    """A changed hash would let a resumed run train on text that it was evaluated on."""
    held = [name for name in NAMES[:60] if is_validation(name, 0.1)]
    assert held == HELD_OF_THE_FIRST_60


@pytest.mark.slow
def test_the_split_is_the_same_in_another_process_with_another_hash_seed():
    code = (
        "from axcore.data.document import is_validation\n"
        "print([i for i in range(300) if is_validation(f'folder/{i}.py', 0.1)])"
    )
    environment = {"PYTHONHASHSEED": "12345", "PYTHONPATH": ":".join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == str([i for i in range(300) if is_validation(NAMES[i], 0.1)])


def test_a_name_that_is_no_unicode_can_be_split():
    assert is_validation("caf\udce9.txt", 1.0 - 1e-9) is True
