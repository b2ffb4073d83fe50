"""Experiments: named, complete training configs."""
