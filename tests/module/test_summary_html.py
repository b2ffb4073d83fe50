"""What notebooks show of a module: the table of its parameters, the same as in text."""

import re

from html_words import words_of

import axcore as ax
from axcore.module.summary import summary_table


def test_the_table_has_each_parameter_with_shape_dtype_and_count():
    model = ax.experiment("tiny").model.build()
    words = [word.text for word in words_of(model._repr_html_())]
    header, *rows, total = summary_table(model).splitlines()
    assert words[:2] == ["CausalLM", total.removeprefix("total: ")]
    assert words[2:7] == header.split()
    cells = [cell for row in rows for cell in re.split(r"  +", row)]
    assert words[7:] == cells
    assert "4x128x384" in words
