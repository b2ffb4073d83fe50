"""Lines of code are what a person writes: no blanks, comments or docstrings."""

import json
import textwrap
from math import (
    pi,
    tau,
)

import pytest

from axcore.complexity import code_lines, lines_to_write


def lines(source: str) -> list[int]:
    return sorted(code_lines(textwrap.dedent(source)))


def test_blanks_comments_and_docstrings_are_no_code():
    source = '''\
        """A module's docstring,
        of two lines."""

        # a comment
        x = 1  # and another


        class A:
            """A class's."""

            def f(self):
                """A function's."""
                return x
    '''
    assert lines(source) == [5, 8, 11, 13]


def test_every_line_of_a_statement_is_code():
    assert lines("x = [\n    1,\n\n    2,\n]\n") == [1, 2, 4, 5]


def test_a_string_that_is_a_value_is_code_on_all_its_lines():
    assert lines('x = """a\n\nb"""\n') == [1, 2, 3]


def test_source_that_cannot_be_parsed_is_refused():
    with pytest.raises(SyntaxError):
        code_lines("def f(:\n")


def test_statements_on_one_line_are_one_line():
    assert lines("a = 1; b = 2\n") == [1]


def test_what_is_written_includes_the_imports_that_are_used():
    def with_one_import(x):
        """No code."""
        return json.dumps(x)

    assert lines_to_write(with_one_import) == 3


def test_one_import_statement_counts_once_however_many_names_are_used():
    def with_two_names(x):
        return x * pi + tau

    assert lines_to_write(with_two_names) == 3


def test_decorators_are_written_too():
    @pytest.mark.skipif(False, reason="")
    def decorated():
        return 1

    assert lines_to_write(decorated) == 4
