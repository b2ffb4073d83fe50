"""The RMS normalisation op."""
