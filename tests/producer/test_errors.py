"""The error tree: codes, what may be sent again, and the table in WIRE.md."""

import re
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.producer import errors
from penstock.producer.errors import ERRORS_BY_CODE, BackendError, InvalidRequest, PenstockError, error_from_code
from penstock.producer.wire.codec import decode_request, encode_error


def _all_subclasses(cls: type[PenstockError]) -> set[type[PenstockError]]:
    found = set(cls.__subclasses__())
    return found.union(*(_all_subclasses(sub) for sub in found))


NO_REPLY_HAS = {errors.KafkaUnreachable, errors.MixedRevisions, errors.WrongArgument, errors.WrongLoop}


def test_every_class_has_its_own_code() -> None:
    defined = {cls for cls in _all_subclasses(PenstockError) if cls.__module__ == errors.__name__}
    assert set(ERRORS_BY_CODE.values()) == defined - NO_REPLY_HAS
    assert all(cls.code == code for code, cls in ERRORS_BY_CODE.items())


@pytest.mark.parametrize("code", ERRORS_BY_CODE)
def test_the_pages_table_agrees(code: str) -> None:
    page = (Path(errors.__file__).parent / "wire" / "WIRE.md").read_text()
    row = re.search(rf"^\| `{code}` \| (yes|no) \|", page, re.MULTILINE)
    assert row is not None
    assert (row.group(1) == "yes") == ERRORS_BY_CODE[code].retriable


def test_the_pages_table_has_no_other_code() -> None:
    page = (Path(errors.__file__).parent / "wire" / "WIRE.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \| (?:yes|no) \|", page, re.MULTILINE)) == set(ERRORS_BY_CODE)


def test_codes_become_exceptions() -> None:
    for code, cls in ERRORS_BY_CODE.items():
        error = error_from_code(code, "why")
        assert type(error) is cls
        assert error.message == "why"


def test_a_newer_code_is_kept_in_the_text() -> None:
    error = error_from_code("quota", "none left")
    assert type(error) is BackendError
    assert error.message == "quota: none left"


def test_request_faults_are_never_retriable() -> None:
    assert all(not cls.retriable for cls in ERRORS_BY_CODE.values() if issubclass(cls, InvalidRequest))


def test_rows_at_fault() -> None:
    row = errors.TooLong("Given: 600")
    for cls in ERRORS_BY_CODE.values():
        assert cls("Sequence 1.", {1: row}).rows == {1: row}
        assert cls("The envelope.").rows == {}


@given(st.text())
def test_no_message_holds_a_control_character_and_readable_ones_are_as_they_were(text: str) -> None:
    error = InvalidRequest(text, {0: InvalidRequest(f"Given: {text}")})
    assert str(error).isprintable()
    assert error.rows[0].message.isprintable()
    assert not text.isprintable() or str(error) == text


def test_an_error_reply_holds_no_escape_sequence_of_a_client() -> None:
    hostile = "\x1b]0;title\x07\x9b2J\u202e\n"
    with pytest.raises(InvalidRequest) as raised:
        decode_request(msgpack.packb({"v": 1, "model": "m", "task": hostile, "text": "x"}))
    reply = msgpack.unpackb(encode_error(raised.value))["error"]["message"]
    assert reply.isprintable()
    assert error_from_code(hostile, hostile).message.isprintable()  # of a worker that is not to be trusted either
