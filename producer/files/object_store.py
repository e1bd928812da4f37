"""Stores of objects: those of Amazon, Google and Azure by obstore, and Hugging Face's by its own library.

Endpoints and credentials are those of the libraries' environment variables (`AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID`,
`GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_KEY`, `HF_TOKEN`), or the machine's own role.

obstore repeats a request that fails, within `RETRY`, and continues a broken download. An upload is visible when it is
whole, or not at all. That is why it is used here: pyarrow's upload becomes an object, however short, when its file is
dropped after an error.
"""

import errno
import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from penstock.producer.files.row_blocks import StoreError, TableError

# Of a request: for about a minute, or three of them where each is given up after `timeout`.
RETRY: Any = {
    "max_retries": 50,
    "retry_timeout": timedelta(seconds=180),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2},
}
_CLIENT: Any = {"connect_timeout": "5s", "timeout": "60s", "allow_http": True}
# Of an upload.
_CHUNK_BYTES = 8 << 20
_CHUNKS_AT_ONCE = 4
_MOST_CHUNKS = 9_000  # S3 takes 10,000
_MARK = "penstockjob"  # key of an object's metadata: Azure takes no hyphen

Range = Callable[[int, int], memoryview]  # the bytes from a position up to another one


class ObjectStat(NamedTuple):
    """The facts of a file that readers and manifests ask for."""

    st_size: int
    st_mtime_ns: int  # no time, but a number of the content: it differs when the object is replaced
    st_ino: int = 0


class ReadableStore(ABC):
    """The objects of a bucket. FileNotFoundError, TableError and StoreError are raised as `ObjectPath` says."""

    @abstractmethod
    def stat(self, key: str) -> ObjectStat:
        """Size and version."""

    @abstractmethod
    def below(self, prefix: str) -> Iterator[tuple[str, ObjectStat]]:
        """The objects below a folder."""

    @abstractmethod
    def opened(self, key: str) -> tuple[int, Range]:
        """The size of an object, and what reads it. It raises TableError once the object has been replaced."""


class Bucket(ReadableStore):
    """A bucket of Amazon's, Google's or Azure's store, or of one with their interface."""

    def __init__(self, url: str) -> None:
        from obstore.store import from_url

        self._url = url
        with _typed(url):
            self._store: Any = from_url(url, client_options=_CLIENT, retry_config=RETRY)

    def stat(self, key: str) -> ObjectStat:
        import obstore

        with _typed(f"{self._url}/{key}"):
            return _stat(obstore.head(self._store, key))

    def below(self, prefix: str) -> Iterator[tuple[str, ObjectStat]]:
        import obstore

        try:
            with _typed(f"{self._url}/{prefix}"):
                for some in obstore.list(self._store, prefix):
                    yield from ((one["path"], _stat(one)) for one in some)
        except FileNotFoundError:
            raise TableError(f"{self._url}: there is no such bucket.") from None

    def opened(self, key: str) -> tuple[int, Range]:
        import obstore

        url = f"{self._url}/{key}"
        with _typed(url):
            found = obstore.head(self._store, key)

        def read(start: int, stop: int) -> memoryview:
            options: Any = {"range": (start, stop), "if_match": found["e_tag"]}
            with _typed(url):
                try:
                    return memoryview(obstore.get(self._store, key, options=options).bytes())
                except obstore.exceptions.PreconditionError:
                    raise TableError(f"{url} has changed while it was read.") from None

        return found["size"], read

    def content(self, key: str) -> tuple[bytes, dict[str, str]]:
        """A small object, and its version for `replace`."""
        import obstore

        with _typed(f"{self._url}/{key}"):
            found = obstore.get(self._store, key)
            return bytes(found.bytes()), _version(found.meta)

    def replace(self, key: str, content: bytes, version: dict[str, str] | None) -> dict[str, str] | None:
        """Write a small object if it is still of this version, or, for None, if there is none. Returns its version.

        Returns None if another process has written it. The store compares and writes in one step.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = version or "create"
        try:
            with _typed(f"{self._url}/{key}"), suppress(AlreadyExistsError, PreconditionError):
                return _version(obstore.put(self._store, key, content, mode=mode))
            written, now = self.content(key)
        except FileNotFoundError:
            if version is None:
                raise
            return None
        # This very request may have been repeated, because its first answer was lost.
        return now if written == content else None

    def upload(self, key: str, file: Path, mark: str) -> None:
        """Write an object of a local file's content. `mark`: no other upload has it; `mark_of` returns it."""
        import obstore

        chunk_bytes = max(_CHUNK_BYTES, file.stat().st_size // _MOST_CHUNKS)
        sizes: Any = {"chunk_size": chunk_bytes, "max_concurrency": _CHUNKS_AT_ONCE}
        try:
            with _typed(f"{self._url}/{key}"):
                obstore.put(self._store, key, file, attributes={_MARK: mark}, **sizes)
        except (FileNotFoundError, StoreError):
            # Where the answer to the last request was lost, its repetition finds no upload to complete.
            if self.mark_of(key) != mark:
                raise

    def mark_of(self, key: str) -> str:
        """The mark of an upload; empty for another object, or none."""
        import obstore

        try:
            with _typed(f"{self._url}/{key}"):
                return str(obstore.get(self._store, key, options={"head": True}).attributes.get(_MARK, ""))
        except FileNotFoundError:
            return ""

    def delete(self, keys: list[str]) -> None:
        """Delete objects."""
        import obstore

        with _typed(self._url):
            obstore.delete(self._store, keys)


class HuggingFace(ReadableStore):
    """The files of a repository, such as `hf://datasets/OWNER/NAME@REVISION`. They are read only."""

    def __init__(self, url: str) -> None:
        from huggingface_hub import HfFileSystem

        self._root = url.removeprefix("hf://")
        self._files: Any = HfFileSystem()

    def stat(self, key: str) -> ObjectStat:
        with _typed(f"hf://{self._root}/{key}"):
            return _hub_stat(self._files.info(f"{self._root}/{key}"))

    def below(self, prefix: str) -> Iterator[tuple[str, ObjectStat]]:
        with _typed(f"hf://{self._root}/{prefix}"):
            found = self._files.find(f"{self._root}/{prefix}", detail=True)
        for name, one in found.items():
            yield name.lstrip("/").removeprefix(f"{self._root}/"), _hub_stat(one)

    def opened(self, key: str) -> tuple[int, Range]:
        url = f"hf://{self._root}/{key}"
        with _typed(url):
            file = self._files.open(f"{self._root}/{key}", "rb", cache_type="none")

        def read(start: int, stop: int) -> memoryview:
            with _typed(url):
                file.seek(start)
                return memoryview(file.read(stop - start))

        return file.size, read


@functools.cache
def open_store(url: str) -> ReadableStore:
    kind, library = (HuggingFace, "huggingface_hub") if url.startswith("hf://") else (Bucket, "obstore")
    if find_spec(library) is None:
        scheme = url.partition(":")[0]
        raise TableError(f"{scheme}:// needs {library}, which is not installed: pip install 'penstock[object-stores]'")
    return kind(url)


def _stat(found: Any) -> ObjectStat:
    return ObjectStat(found["size"], _number(found["e_tag"] or found["last_modified"]))


def _hub_stat(found: Any) -> ObjectStat:
    if found["type"] != "file":
        raise FileNotFoundError(f"{found['name']} is a folder.")
    return ObjectStat(found["size"], _number(found.get("blob_id") or found.get("xet_hash")))


def _number(version: object) -> int:
    return int.from_bytes(sha256(str(version).encode()).digest()[:7])


def _version(found: Any) -> dict[str, str]:
    return {name: found[name] for name in ("e_tag", "version") if found[name]}


_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r" in [\d.]+\w+(?:, after [^-]*)? - ([^<\n]{1,100})")


@contextmanager
def _typed(url: str) -> Iterator[None]:
    """Raise the library's errors as this module's. Theirs may show signed URLs, and are not shown with them."""
    try:
        yield
    except TableError:
        raise
    except Exception as error:
        raise _fault(error, url) from None


def _fault(error: Exception, url: str) -> Exception:
    text = str(error)
    code = found[1] if (found := _CODE.search(text)) else ""
    if code in _NO_BUCKET or (isinstance(error, FileNotFoundError) and code != "NoSuchUpload"):
        return FileNotFoundError(errno.ENOENT, "there is no such object or bucket", url)
    status = getattr(getattr(error, "response", None), "status_code", None)  # of Hugging Face's errors
    if type(error).__name__ in _DENIED or status in (401, 403):
        return TableError(f"{url}: the store denies access{code and f' ({code})'}. Check the credentials and rights.")
    reason = code or (found[1].strip(" :") if (found := _STATUS.search(text)) else type(error).__name__)
    return StoreError(f"{url}: the store does not answer as it should ({reason}).")


_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_DENIED = ("PermissionDeniedError", "UnauthenticatedError", "PermissionError")
