"""Quantized matmuls: one dot, and grouped, with their gradients."""
