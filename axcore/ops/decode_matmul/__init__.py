"""The decode-matmul op."""
