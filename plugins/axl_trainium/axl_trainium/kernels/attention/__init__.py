"""Attention on Trainium."""
