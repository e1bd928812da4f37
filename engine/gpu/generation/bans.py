"""Tokens that requests never take, as bits on the device."""

from collections.abc import Iterable

import numpy as np
import torch

from penstock.engine.generation_options import GenerationOptions
from penstock.engine.gpu.uploads import upload

_SETS = 64  # of banned tokens: few, for they come with a model or with an application
_BITS = 8


class BanTable:
    """Sets of banned tokens, each kept from its first request on. Of a set, the next row has the end tokens too."""

    def __init__(self, columns: int, device: torch.device) -> None:
        """columns: tokens of a row, a multiple of 8."""
        self.bits = torch.zeros(2 * _SETS, columns // _BITS, dtype=torch.uint8, device=device)
        self._rows: dict[tuple[frozenset[int], frozenset[int]], int] = {}

    def row_of(self, options: GenerationOptions) -> int | None:
        """The first row of the options' set; None if there is no room for it, or it is no set."""
        banned = banned_tokens(options)
        if banned is None:
            return None
        key = banned, frozenset(options.eos_token_ids)
        if key not in self._rows and len(self._rows) < _SETS:
            row = 2 * len(self._rows)
            self._write(row, banned)
            self._write(row + 1, banned | key[1])
            self._rows[key] = row
        return self._rows.get(key)

    def _write(self, row: int, tokens: Iterable[int]) -> None:
        is_banned = np.zeros(self.bits.shape[1] * _BITS, np.uint8)
        is_banned[list(tokens)] = 1
        packed = np.packbits(is_banned, bitorder="little")
        self.bits[row] = upload(self.bits.device, packed)[0]


def banned_tokens(options: GenerationOptions) -> frozenset[int] | None:
    """Tokens that are banned at every step; None if that depends on earlier tokens."""
    ends = {(token,) for token in options.eos_token_ids}
    words = [word for word in options.bad_words_ids if word not in ends]
    if any(len(word) > 1 for word in words):
        return None
    return frozenset((*(word[0] for word in words), *options.suppress_tokens))
