"""The grouped matmul op: rows sorted by group, a matrix for each group."""
