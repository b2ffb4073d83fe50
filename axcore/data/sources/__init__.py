"""Where documents come from: files of a folder in many formats, and mixtures of sources."""
