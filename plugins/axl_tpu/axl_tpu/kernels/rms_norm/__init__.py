"""RMS normalisation on TPUs."""
