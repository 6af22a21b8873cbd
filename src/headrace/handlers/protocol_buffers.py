"""Reads single fields of protocol buffers, without the packages that know their schemas."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["fields", "integers", "messages", "texts"]

_VARINT, _EIGHT_BYTES, _WITH_LENGTH, _FOUR_BYTES = 0, 1, 2, 5


def messages(message: memoryview, *path: int) -> Iterator[memoryview]:
    """The messages, texts or bytes at the end of a path of field numbers, each within the one before."""
    if not path:
        yield message
        return
    for number, value in fields(message):
        if number == path[0] and isinstance(value, memoryview):
            yield from messages(value, *path[1:])


def texts(message: memoryview, *path: int) -> list[str]:
    """The texts at the end of a path."""
    return [bytes(text).decode() for text in messages(message, *path)]


def integers(message: memoryview, number: int) -> list[int]:
    """The values of a field of integers."""
    return [value for found, value in fields(message) if found == number and isinstance(value, int)]


def fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Numbers and values of all fields: an integer, or the bytes of anything else.

    Raises:
        ValueError: it is no protocol buffer, or ends too early.
    """
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        size = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}.get(tag & 7)
        if tag & 7 in (_VARINT, _WITH_LENGTH):
            size, place = _varint(message, place)
        if tag & 7 == _VARINT:
            yield tag >> 3, size or 0
            continue
        if size is None or place + size > len(message):
            raise ValueError("it is damaged, or of another format")
        yield tag >> 3, message[place : place + size]
        place += size


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    """An integer, seven bits a byte, and where the next field begins."""
    value = shift = 0
    while place < len(message):
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
    raise ValueError("it is damaged, or of another format")
