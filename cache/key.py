"""The key of a cached answer: everything that decides the answer and nothing else. Equal keys mean equal answers."""

import struct
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

KEY_BYTES = 32

_ABSENT = (1 << 64) - 1  # no string is this long, so None differs from every string
_HEAD = struct.Struct("<Q?")

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class KeySpace:
    """What all requests for one kind of answer share. The worker makes one for each set of options it meets.

    The fields are hashed once; `key` continues from there. Every part is preceded by its length, so two inputs give the
    same bytes to the hash only if they are equal part by part.
    """

    revision: str  # strong hash of weights, head and configuration (engine.ModelInfo.revision)
    dtype: str  # the arithmetic's precision
    task: str  # as in the request
    pooling: str | None  # None: the checkpoint's own
    normalize: bool | None  # None: the checkpoint's own
    dimensions: int | None = None  # None: the checkpoint's own
    _prefix: Any = field(init=False, repr=False, compare=False)  # blake2b over the fields above

    def __post_init__(self) -> None:
        prefix = blake2b(digest_size=KEY_BYTES, person=b"penstock cache 1")
        for part in (self.revision, self.dtype, self.task, self.pooling, self.normalize, self.dimensions):
            prefix.update(_part(None if part is None else str(part)))
        object.__setattr__(self, "_prefix", prefix)

    def key(self, ids: Buffer, token_type_ids: Buffer | None = None) -> bytes:
        """The key of one sequence, `KEY_BYTES` long.

        Args:
            ids: token ids as little-endian 32-bit integers, special tokens included (of an array: its `.data`).
            token_type_ids: likewise, one a token. None means all zero, and is the only way to say so: zeros written
                out get another key.
        """
        state = self._prefix.copy()
        state.update(_HEAD.pack(memoryview(ids).nbytes, token_type_ids is not None))
        state.update(ids)
        if token_type_ids is not None:
            state.update(token_type_ids)
        digest: bytes = state.digest()
        return digest


def _part(text: str | None) -> bytes:
    if text is None:
        return struct.pack("<Q", _ABSENT)
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded
