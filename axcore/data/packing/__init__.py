"""Tokens of documents packed into rows, and the order in which rows are read."""
