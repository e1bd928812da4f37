"""Reader of an object, in ranges."""

import io

from penstock.producer.files.object_store import ReadableStore


class ObjectReader(io.RawIOBase):
    """An open object, of which one range is in memory."""

    def __init__(self, store: ReadableStore, key: str, least_bytes: int = 0) -> None:
        """Raises FileNotFoundError, TableError and StoreError, as reads do.

        Args:
            least_bytes: of a request. Each is a request of its own otherwise; TextIOWrapper reads 8 KiB at a time.
        """
        self._size, self._read = store.opened(key)
        self._least_bytes = least_bytes
        self._position = self._start = 0
        self._range = memoryview(b"")  # from `_start`

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # what BufferedReader and pyarrow give
        """Read as many bytes as there are: pyarrow takes fewer for the end of the file."""
        count = max(0, min(len(buffer), self._size - self._position))
        first = self._position - self._start
        if first < 0 or first + count > len(self._range):
            stop = min(self._size, self._position + max(count, self._least_bytes))
            self._range = self._read(self._position, stop)
            self._start, first = self._position, 0
        buffer[:count] = self._range[first : first + count]
        self._position += count
        return count
