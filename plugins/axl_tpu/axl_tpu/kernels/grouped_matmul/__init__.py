"""Grouped matmul on TPUs."""
