"""Every experiment of the plugin is pinned down as text, by itself and on some hardware.

After a change that is meant, this file writes all of them again where it is run as a program, with
`PYTHONPATH=tests/support`.
"""

import pytest
from golden_experiments import Goldens

GOLDENS = Goldens("axl-vision", __file__, ("tpu-v5p-512", "gpu-h100-256"))


@pytest.mark.parametrize(("name", "target"), GOLDENS.cases)
def test_an_experiment_renders_as_its_golden_text(name, target):
    GOLDENS.check(name, target)


def test_no_golden_text_is_left_of_an_experiment_that_is_gone():
    GOLDENS.assert_none_is_left()


if __name__ == "__main__":
    GOLDENS.write()
