"""Maps from published models to the families of this plugin, and back."""
