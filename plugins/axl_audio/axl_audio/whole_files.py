"""`check_is_whole`: finds sound files that are cut off or damaged where libsndfile reads on.

Of FLAC and MP3 it finds that itself; a cut WAV is a shorter one to it, and a damaged Ogg ends
early.
"""

import zlib

_STREAMED = 0x7FFF0000
"""Bytes that a header says at least where it was written before the length was known."""

_PAGE_HEADER, _ENDS = 27, 4
"""Bytes of an Ogg page before its table of segments, and the flag of a stream's last page."""

_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def check_is_whole(content: bytes) -> None:
    """Check that all of a file is there, as far as its format says.

    Raises:
        ValueError: It ends too early, or is damaged.
    """
    kind = content[:4]
    if kind == b"OggS":
        _check_pages(content)
    elif kind == b"RIFF" and content[8:12] == b"WAVE":
        _check_length(content, _samples_end(content))
    elif kind == b"FORM":
        _check_length(content, 8 + int.from_bytes(content[4:8], "big"))
    elif kind == b".snd":
        begin, size = (int.from_bytes(content[at : at + 4], "big") for at in (4, 8))
        _check_length(content, begin + size)


def _check_length(content: bytes, wanted: int) -> None:
    if len(content) < wanted < _STREAMED:
        missing = wanted - len(content)
        raise ValueError(f"it ends too early: {missing:,} bytes are missing that its header names")


def _samples_end(content: bytes) -> int:
    """Return where the samples of a WAV end, by its header."""
    place = 12
    while place + 8 <= len(content):
        size = int.from_bytes(content[place + 4 : place + 8], "little")
        if content[place : place + 4] == b"data":
            return place + 8 + size
        place += 8 + size + size % 2  # chunks begin at even bytes
    return 0


def _check_pages(content: bytes) -> None:
    """Check the pages of an Ogg stream, which decoders drop where one is damaged.

    Source: RFC 3533, section 6.

    Raises:
        ValueError: One is damaged, or the last is missing.
    """
    place, flags = 0, 0
    while place < len(content):
        num_segments = content[place + 26] if place + _PAGE_HEADER <= len(content) else 0
        begin = place + _PAGE_HEADER + num_segments
        end = begin + sum(content[place + _PAGE_HEADER : begin])
        page = content[place:end]
        if page[:4] != b"OggS" or end > len(content) or not _is_intact(page):
            raise ValueError(f"it is damaged or ends too early: its page at byte {place:,}")
        flags, place = page[5], end
    if not flags & _ENDS:
        raise ValueError("it ends too early: its last page is missing")


def _is_intact(page: bytes) -> bool:
    """Return whether an Ogg page has the checksum that it names."""
    named = int.from_bytes(page[22:26], "little")
    # Of the same polynomial as zlib's, but with bits in the other order, and from 0.
    plain = (page[:22] + bytes(4) + page[26:]).translate(_REVERSED)
    found = zlib.crc32(plain, 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{found:032b}"[::-1], 2) == named
