"""Rotary positions on TPU."""
