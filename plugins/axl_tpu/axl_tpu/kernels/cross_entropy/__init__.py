"""Cross-entropy on TPUs."""
