"""Changes to valid samples: of their bytes, and of the data that they encode."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

_NUMBERS = (0, 1, -1, 127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31), 2**32, 2**63 - 1, 2**64 - 1)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", "é", "\x00", "x" * 2000, b"", b"\xff", b"\0" * 8, 0.5, float("nan"), float("inf")),
    *(1e308, [], {}, [[]], {"v": 1}, [None] * 100, *_NUMBERS),
)
_MOST_BYTES = 100_000


def mutated_bytes(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """A sample after one to four changes of its bytes."""
    data = bytearray(rng.choice(samples))
    for _ in range(rng.choice((1, 1, 2, 4))):
        rng.choice(_CHANGES)(rng, data, samples)
    return bytes(data[:_MOST_BYTES])


def mutated_msgpack(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """A sample with one to three of its values replaced, encoded again."""
    return bytes(msgpack.packb(_mutated_tree(rng, msgpack.unpackb(rng.choice(samples)))))


def mutated_json(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """As `mutated_msgpack`; bytes become text."""
    return json.dumps(_mutated_tree(rng, json.loads(rng.choice(samples))), default=repr).encode()


def _flip(rng: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(rng: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    size = rng.choice((1, 2, 4, 8))
    place = rng.randrange(len(data) + 1)
    number = rng.choice(_NUMBERS) & ((1 << 8 * size) - 1)
    data[place : place + size] = number.to_bytes(size, rng.choice(("big", "little")))


def _insert(rng: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    place = rng.randrange(len(data) + 1)
    data[place:place] = rng.randbytes(rng.choice((1, 2, 8, 64)))


def _delete(rng: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.choice((1, 2, 8, len(data)))]


def _repeat(rng: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = data[start : start + rng.choice((1, 2, 16))] * rng.choice((2, 10, 1000))


def _splice(rng: random.Random, data: bytearray, samples: Sequence[bytes]) -> None:
    other = rng.choice(samples)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


_Change = Callable[[random.Random, bytearray, Sequence[bytes]], None]
_CHANGES: tuple[_Change, ...] = (_flip, _flip, _overwrite, _insert, _delete, _repeat, _splice)


def _mutated_tree(rng: random.Random, tree: Any) -> Any:
    for _ in range(rng.choice((1, 1, 2, 3))):
        tree = _with_one_replaced(rng, tree)
    return tree


def _with_one_replaced(rng: random.Random, tree: Any) -> Any:
    """A copy with another value at one place, or with one more or one fewer entry."""
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        name = rng.choice(list(tree))
        if rng.random() < 0.15:
            return {other: value for other, value in tree.items() if other != name}
        return {**tree, name: _with_one_replaced(rng, tree[name])}
    if isinstance(tree, list) and tree and rng.random() < 0.8:
        place = rng.randrange(len(tree))
        entry = [] if rng.random() < 0.15 else [_with_one_replaced(rng, tree[place])]
        return tree[:place] + entry + tree[place + 1 :]
    return rng.choice(_VALUES)
