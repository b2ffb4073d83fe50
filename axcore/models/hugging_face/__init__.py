"""Maps from published models to the families here, and back; see `axcore.interop`."""
