"""Keys of cached answers. A key covers everything that decides the answer, so equal keys mean equal answers."""

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
    """The part of the key that requests with equal options share. The worker makes one for each set of options.

    The fields are hashed once, and `key` continues from there. Each part is preceded by its length, so inputs give the
    same bytes to the hash only if all their parts are equal.
    """

    revision: str  # strong hash of weights, head and configuration (engine.ModelInfo.revision)
    dtype: str  # the arithmetic's precision
    task: str  # as in the request
    pooling: str | None  # None: the checkpoint's own
    normalize: bool | None  # None: the checkpoint's own
    dimensions: int | None  # None: the checkpoint's own
    prompt_tokens: int = 0  # leading tokens that pooling leaves out
    generation: str | None = None  # every option of generation, the model's own included, and the seed of sampling
    _prefix: Any = field(init=False, repr=False, compare=False)  # blake2b over the fields above

    def __post_init__(self) -> None:
        prefix = blake2b(digest_size=KEY_BYTES, person=b"penstock cache 3")
        of_embedding = self.pooling, self.normalize, self.dimensions, self.prompt_tokens
        for part in (self.revision, self.dtype, self.task, *of_embedding, self.generation):
            prefix.update(_part(None if part is None else str(part)))
        object.__setattr__(self, "_prefix", prefix)

    def key(self, ids: Buffer, token_type_ids: Buffer | None = None) -> bytes:
        """The key of one sequence, `KEY_BYTES` long.

        Args:
            ids: token ids as little-endian 32-bit integers, with special tokens (of an array: its `.data`).
            token_type_ids: likewise, one a token. None means all zero; explicit zeros give another key.
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
