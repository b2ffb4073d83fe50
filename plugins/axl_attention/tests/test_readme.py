"""What the README shows works."""

import re
from pathlib import Path

from axl_attention.attention_cores import SlidingWindowAttention
from axl_attention.norms import QueryKeyNorm

from axcore.config import find_config

README = Path(__file__).parents[1] / "README.md"


def test_block_of_the_readme_changes_the_experiment():
    (block,) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    names = {}
    exec(block, names)
    (window,) = find_config(names["cfg"], SlidingWindowAttention)
    assert window.node.window == 64
    assert find_config(names["cfg"], QueryKeyNorm)


def test_links_lead_somewhere():
    for link in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert (README.parent / link).exists(), link
