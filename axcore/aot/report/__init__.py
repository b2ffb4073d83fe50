"""The report of a compiled step: as values, as text and as a page."""
