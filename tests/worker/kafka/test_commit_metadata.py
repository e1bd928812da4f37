"""Finished offsets as the metadata of a commit: bounded text that another owner reads, or ignores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.kafka.progress.commit_metadata import decode, encode

MAX_BYTES = 4096  # offset.metadata.max.bytes of a broker, by default
ROOM = 24_000  # offsets that fit at least


@given(st.integers(0, 2**62), st.sets(st.integers(0, ROOM - 1)))
def test_finished_offsets_come_back(offset: int, ahead: set[int]) -> None:
    finished = {offset + one for one in ahead}
    assert decode(offset, encode(offset, finished)) == finished


@given(st.integers(0, 2**62), st.sets(st.integers(-100_000, 100_000), max_size=200))
def test_metadata_is_bounded_and_tells_no_offset_that_is_not_finished(offset: int, ahead: set[int]) -> None:
    finished = {offset + one for one in ahead}
    metadata = encode(offset, finished)
    assert len(metadata.encode()) <= MAX_BYTES
    found = decode(offset, metadata)
    assert found <= finished
    assert found >= {one for one in finished if offset <= one < offset + ROOM}


def test_a_commit_with_nothing_beyond_it_has_no_metadata() -> None:
    assert encode(7, []) == ""
    assert decode(7, "") == frozenset()


@pytest.mark.parametrize(
    "metadata", ["flink-job-7", "penstock2:AA==", "penstock1:A", "penstock1:?", "penstock1:" + "A" * 4096]
)
def test_metadata_of_another_program_is_refused(metadata: str) -> None:
    with pytest.raises(ValueError, match="commit metadata"):
        decode(7, metadata)


@given(st.text(max_size=100))
def test_any_text_decodes_or_is_refused(text: str) -> None:
    for metadata in (text, f"penstock1:{text}"):
        try:
            assert all(offset >= 3 for offset in decode(3, metadata))
        except ValueError as error:
            assert "commit metadata" in str(error)  # noqa: PT017 — the decoder may accept the text, too
