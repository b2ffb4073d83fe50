"""Decode attention on TPUs."""
