"""Keys: equal for equal inputs, different as soon as one part differs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.key import KEY_BYTES, KeySpace

SPACE = KeySpace(revision="r1", dtype="float32", task="embed", pooling=None, normalize=None, dimensions=None)

strings = st.text(max_size=4)
spaces = st.builds(
    KeySpace,
    revision=strings,
    dtype=strings,
    task=strings,
    pooling=st.none() | strings,
    normalize=st.none() | st.booleans(),
    dimensions=st.none() | st.integers(1, 4),
    prompt_tokens=st.integers(0, 4),
    generation=st.none() | strings,
)
buffers = st.binary(max_size=12)
inputs = st.tuples(spaces, buffers, st.none() | buffers)


@given(inputs, inputs)
def test_keys_are_equal_exactly_when_inputs_are(
    first: tuple[KeySpace, bytes, bytes | None], second: tuple[KeySpace, bytes, bytes | None]
) -> None:
    assert (first[0].key(*first[1:]) == second[0].key(*second[1:])) == (first == second)


@given(st.binary(max_size=24), st.integers(0, 24), st.integers(0, 24))
def test_moving_the_border_between_ids_and_types_moves_the_key(data: bytes, cut: int, other: int) -> None:
    cut, other = min(cut, len(data)), min(other, len(data))
    keys = SPACE.key(data[:cut], data[cut:]), SPACE.key(data[:other], data[other:])
    assert (keys[0] == keys[1]) == (cut == other)


@pytest.mark.parametrize(
    "other",
    [
        replace(SPACE, revision="r2"),
        replace(SPACE, dtype="bfloat16"),
        replace(SPACE, task="classify"),
        replace(SPACE, pooling="mean"),
        replace(SPACE, pooling=""),
        replace(SPACE, normalize=True),
        replace(SPACE, normalize=False),
        replace(SPACE, dimensions=8),
        replace(SPACE, prompt_tokens=8),
        replace(SPACE, generation=""),
        replace(SPACE, revision="r1float32", dtype=""),
    ],
)
def test_every_field_counts(other: KeySpace) -> None:
    assert other.key(b"\1\0\0\0") != SPACE.key(b"\1\0\0\0")


def test_no_types_empty_types_and_zero_types_differ() -> None:
    keys = {SPACE.key(b"", None), SPACE.key(b"", b""), SPACE.key(b"", bytes(4)), SPACE.key(bytes(4), None)}
    assert len(keys) == 4


def test_a_key_is_the_same_in_every_process_and_for_every_kind_of_buffer() -> None:
    ids = np.array([101, 7592, 102], dtype=np.int32)
    key = SPACE.key(ids.tobytes())
    assert len(key) == KEY_BYTES
    assert key == SPACE.key(ids.data) == SPACE.key(ids.astype(np.uint32).data) == SPACE.key(bytearray(ids.tobytes()))
    assert key == replace(SPACE).key(ids.data)
    assert key.hex() == "09cb56ac50098bf2919239a8792eb4f1d9a0092e34bd920b1563ebe699c497b0"
