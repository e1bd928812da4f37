"""A topic's id and finished offsets as the metadata of a commit: bounded text that another owner reads, or ignores."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.kafka.kafka_record import NO_TOPIC_ID
from penstock.worker.kafka.progress.commit_metadata import decode, encode

MAX_BYTES = 4096  # offset.metadata.max.bytes of a broker, by default
ROOM = 23_900  # offsets that fit at least
TOPIC_IDS = st.binary(min_size=16, max_size=16)
PREFIX = "penstock2:"


@given(TOPIC_IDS, st.integers(0, 2**62), st.sets(st.integers(0, ROOM - 1)))
def test_the_id_and_finished_offsets_come_back(topic_id: bytes, offset: int, ahead: set[int]) -> None:
    finished = frozenset(offset + one for one in ahead)
    assert decode(offset, encode(topic_id, offset, finished)) == (topic_id, finished)


@given(TOPIC_IDS, st.integers(0, 2**62), st.sets(st.integers(-100_000, 100_000), max_size=200))
def test_metadata_is_bounded_and_tells_no_offset_that_is_not_finished(
    topic_id: bytes, offset: int, ahead: set[int]
) -> None:
    finished = {offset + one for one in ahead}
    metadata = encode(topic_id, offset, finished)
    assert len(metadata.encode()) <= MAX_BYTES
    _, found = decode(offset, metadata)
    assert found <= finished
    assert found >= {one for one in finished if offset <= one < offset + ROOM}


def test_a_commit_with_nothing_beyond_it_of_a_topic_without_an_id_has_no_metadata() -> None:
    assert encode(NO_TOPIC_ID, 7, []) == ""
    assert decode(7, "") == (NO_TOPIC_ID, frozenset())


@pytest.mark.parametrize(
    "metadata",
    ["flink-job-7", "penstock1:AA==", f"{PREFIX}A", f"{PREFIX}?", f"{PREFIX}AAAA:", PREFIX + "A" * 4096],
)
def test_metadata_of_another_program_is_refused(metadata: str) -> None:
    with pytest.raises(ValueError, match="commit metadata"):
        decode(7, metadata)


@given(st.text(max_size=100))
def test_any_text_decodes_or_is_refused(text: str) -> None:
    for metadata in (text, f"{PREFIX}{text}", f"{PREFIX}{'A' * 22}==:{text}"):
        try:
            assert all(offset >= 3 for offset in decode(3, metadata)[1])
        except ValueError as error:
            assert "commit metadata" in str(error)  # noqa: PT017 — the decoder may accept the text, too
