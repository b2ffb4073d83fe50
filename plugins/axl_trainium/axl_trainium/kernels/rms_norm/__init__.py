"""RMS normalisation on Trainium."""
