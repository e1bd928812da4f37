"""Decompression of record batches with a bound on the result, which holds before memory is allocated for it.

aiokafka (0.14) has codecs without a bound. Goes with `record_batches`.
"""

import zlib
from collections.abc import Callable

import cramjam

_GZIP_WINDOW = 31  # zlib's number for a gzip header and its largest window
_XERIAL = b"\x82SNAPPY\x00"  # Java's snappy: blocks behind a header
_XERIAL_HEADER_BYTES = 16
_USUAL_RATIO = 8
_WHOLE_BUFFER = "failed to write whole buffer"  # cramjam: the result does not fit


class BombError(Exception):
    """The result would exceed the bound."""


class CorruptError(Exception):
    """The bytes cannot be decompressed."""


def decompress(codec: int, data: memoryview, max_bytes: int) -> bytes:
    """Decompress the records of a batch. Allocates at most twice `max_bytes`. Called from any thread.

    Args:
        codec: the number in the batch's attributes: 1 gzip, 2 snappy, 3 lz4, 4 zstd.

    Raises:
        BombError: there are more than `max_bytes`.
        CorruptError: the codec is unknown or the bytes are not of it.
    """
    try:
        unpack = _CODECS[codec]
    except KeyError:
        raise CorruptError(f"unknown compression codec {codec}") from None
    try:
        return unpack(data, max_bytes)
    except (zlib.error, cramjam.DecompressionError) as error:
        raise CorruptError(repr(error)) from error


def _gzip(data: memoryview, max_bytes: int) -> bytes:
    stream = zlib.decompressobj(_GZIP_WINDOW)
    result = stream.decompress(data, max_bytes + 1)
    if len(result) > max_bytes:
        raise BombError
    if not stream.eof or stream.unused_data:  # a second member too: no producer writes one
        raise CorruptError("the gzip stream ends too early or too late")
    return result


def _snappy(data: memoryview, max_bytes: int) -> bytes:
    if data[: len(_XERIAL)] != _XERIAL:
        return _snappy_block(data, max_bytes)
    blocks: list[bytes] = []
    start = _XERIAL_HEADER_BYTES
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "big")
        if end > len(data):
            raise CorruptError("a snappy block ends too late")
        blocks.append(_snappy_block(data[start + 4 : end], max_bytes))
        max_bytes -= len(blocks[-1])
        start = end
    return b"".join(blocks)


def _snappy_block(data: memoryview, max_bytes: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(data) > max_bytes:
        raise BombError
    return bytes(cramjam.snappy.decompress_raw(data))


def _into_buffer(decompress_into: Callable[[memoryview, bytearray], int], data: memoryview, max_bytes: int) -> bytes:
    """Neither format tells the size reliably: try a usual one first, because a large buffer takes milliseconds."""
    usual = _USUAL_RATIO * len(data)
    for size in (usual, max_bytes) if usual < max_bytes else (max_bytes,):
        buffer = bytearray(size)
        try:
            return bytes(memoryview(buffer)[: decompress_into(data, buffer)])
        except cramjam.DecompressionError as error:
            if _WHOLE_BUFFER not in str(error):
                raise
    raise BombError


_CODECS: dict[int, Callable[[memoryview, int], bytes]] = {
    1: _gzip,
    2: _snappy,
    3: lambda data, max_bytes: _into_buffer(cramjam.lz4.decompress_into, data, max_bytes),
    4: lambda data, max_bytes: _into_buffer(cramjam.zstd.decompress_into, data, max_bytes),
}
