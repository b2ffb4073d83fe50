"""Products of a few rows with a weight, read once and as it is stored."""
