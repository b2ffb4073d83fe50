"""Rotary positions on Trainium."""
