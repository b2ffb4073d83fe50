"""Kernels in blocks so small that test cases have several."""


def in_blocks(table, block_sizes, kernel):
    """Returns a kernel that takes these block sizes of a table, whatever the call."""

    def run(*args, **rows):
        with table.forced(block_sizes):
            return kernel(*args, **rows)

    return run
