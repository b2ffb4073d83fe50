"""Records of binary files that cannot be documents."""

from collections.abc import Callable

from axcore.data.document import Document
from axcore.data.file_source import BadRecord
from axcore.data.files import NamedFile
from axcore.errors import DataError


def document_or_bad(
    file: NamedFile, number: int, make: Callable[[], Document]
) -> Document | BadRecord:
    """Returns the document of a record, or why there is none.

    Args:
        file: Where the record is.
        number: Of the record, from 0.
        make: Makes the document; a ValueError, a KeyError or a DataError of it says that the record
            is bad.
    """
    try:
        return make()
    except (ValueError, KeyError, DataError) as error:
        what = error.what if isinstance(error, DataError) else _said(error)
        said = DataError(
            f"Record {number} of {file.name} is bad: {what}.",
            where=f"{file.where}:{number}",
            hint="Correct or remove it, or set on_bad_record='skip'.",
        )
        return BadRecord(file.name, number, said)


def as_text(value: object, field: str) -> str:
    """Returns a value that has to be text, or its UTF-8.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{field} is not UTF-8 at byte {error.start}") from error
    if not isinstance(value, str):
        raise ValueError(f"{field} holds {value!r:.40}, not text")
    value.encode("utf-8")  # half of a surrogate pair is a ValueError, too
    return value


def _said(error: Exception) -> str:
    return f"it has no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
