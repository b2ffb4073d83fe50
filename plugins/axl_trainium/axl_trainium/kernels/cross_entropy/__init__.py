"""Cross-entropy on Trainium."""
