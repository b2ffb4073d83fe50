"""No vendor's or chip's name is in axcore, outside of experiments' mesh rules."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

AXCORE = Path(__file__).parents[2] / "axcore"

NAMES = re.compile(
    r"(?<![a-z])"
    r"(tpus?|gpus?|cuda|cudnn|cublas|nvidia|nccl|amd|rocm|intel|google|aws|amazon"
    r"|trainium\d?|neuron|nki|trn\d|libtpu|splash|hopper|blackwell"
    r"|[abh]\d00|v[3456][ep]?-\d+|v5[ep]|v6e|mi300x?)"
    r"(?![a-z])",
    re.IGNORECASE,
)


def names_in(text: str) -> list[str]:
    return [match[0] for match in NAMES.finditer(text)]


def files() -> Iterator[Path]:
    for path in sorted(AXCORE.rglob("*")):
        is_text = path.suffix in (".py", ".toml", ".txt", ".md", ".json")
        if is_text and "experiments" not in path.relative_to(AXCORE).parts:
            yield path


def test_no_file_of_axcore_names_a_vendor_or_chip():
    found = {
        f"{path.relative_to(AXCORE)}:{number}": names
        for path in files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (names := names_in(line))
    }
    assert found == {}


@pytest.mark.parametrize(
    "text", ["tpu-v5e", "GPU", "is_gpu = 1", "an H100.", "CUDA_X", "trn2-16", "nvidia,", "v5p"]
)
def test_the_rule_finds_names_in_code_and_prose(text):
    assert names_in(text)


@pytest.mark.parametrize("text", ["output", "accelerator", "a100x = 2", "intelligent", "naming"])
def test_the_rule_leaves_other_words_alone(text):
    assert names_in(text) == []
