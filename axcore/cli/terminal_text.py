"""Text from a model, made safe for a terminal."""


def escape_control_characters(text: str) -> str:
    """Returns text with control characters written out, but for line ends and tabs.

    A model may draw any byte, an escape sequence that rewrites the screen included.
    """
    return "".join(
        char if char in "\n\t" or char.isprintable() else ascii(char)[1:-1] for char in text
    )
