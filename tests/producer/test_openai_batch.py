"""OpenAI's batch files: every line of the input has a line of the output, in their form, whatever is in it."""

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import CreateEmbeddingResponse, EmbeddingCreateParams

from penstock.producer.answer_stream import Result
from penstock.producer.errors import BackendError, Expired, Overloaded, PenstockError, TooLong, UnsupportedTask
from penstock.producer.files import JobOutput, TableError, open_reader, part_writer, row_blocks
from penstock.producer.files.file_job import BulkResult, run_bulk
from penstock.producer.files.openai_reader import EmbeddingBody
from penstock.producer.files.seen_ids import SeenIds
from penstock.producer.files.table_reader import OPENAI
from penstock.producer.wire.messages import NO_OPTIONS, Options, Reply
from tests.examples import examples

FAULTS: dict[str, PenstockError] = {
    "long": TooLong("The text is too long."),
    "burst": BackendError("The engine failed."),
    "late": Expired("The deadline passed."),
    "refused": Overloaded("Try later."),
}


class Vectors:
    """Answers an input with its length, in as many dimensions as are asked for; some texts are errors."""

    def __init__(self, most: float = float("inf"), may_end: Callable[[], bool] = lambda: True) -> None:
        self.most = most  # calls before an interrupt
        self.may_end = may_end  # whether the interrupt may come: before, the call waits
        self.num_calls, self.is_interrupted = 0, False

    async def map(
        self,
        task: str,
        texts: Any,
        *,
        ids: Sequence[Sequence[int]] | None = None,
        options: Options | None = None,
        on_reply: Callable[[Reply, int], object] | None = None,
        **_: Any,
    ) -> list[Result]:
        assert task == "embed"
        assert on_reply is not None
        self.num_calls += 1
        if self.num_calls > self.most:
            while not self.may_end():  # noqa: ASYNC110 — a store has no event
                await asyncio.sleep(0.01)
            if not self.is_interrupted:
                self.is_interrupted = True
                asyncio.get_running_loop().call_soon(_interrupt)
            await asyncio.Event().wait()  # until the loop ends
        dimensions = (options or NO_OPTIONS).dimensions or 2
        if dimensions > 8:
            return [UnsupportedTask("`opts.dimensions` must be at most 8.") for _ in texts]
        inputs: Sequence[Any] = (ids or ()) if texts is None else texts
        answers: list[Result] = [
            FAULTS.get(one, np.full(dimensions, len(one), np.float32)) for one in map(_key, inputs)
        ]
        on_reply(Reply("m", "v1", batch={"request_tokens": sum(len(one) for one in inputs)}), len(inputs))
        return answers


def _interrupt() -> None:
    """Of the loop, as Ctrl-C: raised in a task, it would come again from each that waits for that one."""
    raise KeyboardInterrupt


def _key(one: Any) -> Any:
    return one if isinstance(one, str) else tuple(one)


def line(custom_id: str = "a", *, url: str = "/v1/embeddings", method: str = "POST", **body: Any) -> bytes:
    request = {"custom_id": custom_id, "method": method, "url": url, "body": {"model": "m", **body}}
    return json.dumps(request).encode()


def run_job(folder: Path, *lines: bytes, options: Options = NO_OPTIONS, client: Vectors | None = None) -> BulkResult:
    """Answer the lines, or the files that are there, and write out.jsonl."""
    if lines:
        (folder / "in.jsonl").write_bytes(b"".join(one + b"\n" for one in lines))
    sources = sorted(path for path in folder.glob("*.jsonl") if path.name != "out.jsonl")
    output = JobOutput(folder / "out.jsonl", "embed", "m", options, overwrite=True, standard_format=OPENAI)
    with (
        open_reader(sources, "text", standard_format=OPENAI, model="m") as reader,
        output.open(reader) as writer,
    ):
        return asyncio.run(run_bulk(client or Vectors(), "embed", reader, writer, options=options))


def answers(folder: Path, *lines: bytes, **given: Any) -> list[dict[str, Any]]:
    run_job(folder, *lines, **given)
    return [json.loads(one) for one in (folder / "out.jsonl").read_bytes().splitlines()]


def checked(one: dict[str, Any]) -> CreateEmbeddingResponse:
    """The body of a line that succeeded, as the openai package reads it."""
    assert (one["response"]["status_code"], one["error"]) == (200, None)
    return CreateEmbeddingResponse.model_validate(one["response"]["body"], strict=True, extra="forbid")


@pytest.mark.parametrize(
    ("given", "lengths"),
    [("abc", [3]), (["abc"], [3]), (["a", "abcd"], [1, 4]), ([7, 8], [2]), ([[7, 8], [9]], [2, 1])],
)
def test_each_kind_of_input(tmp_path: Path, given: Any, lengths: list[int]) -> None:
    (one,) = answers(tmp_path, line(input=given))
    body = checked(one)
    assert [(row.index, row.embedding) for row in body.data] == [
        (index, [float(length)] * 2) for index, length in enumerate(lengths)
    ]
    assert body.usage.prompt_tokens == body.usage.total_tokens == sum(lengths)
    assert body.model == "m"


def test_a_line_in_full(tmp_path: Path) -> None:
    run_job(tmp_path, line("né", input="abc"))
    assert (tmp_path / "out.jsonl").read_text(encoding="utf-8") == (
        '{"id": "batch_req_7bfe148b3fa719d15115ff80", "custom_id": "né", "response": {"status_code": 200, '
        '"request_id": "req_bd57d47be73e40969cb10449", "body": {"object": "list", "data": [{"object": "embedding", '
        '"index": 0, "embedding": [3.0, 3.0]}], "model": "m", "usage": {"prompt_tokens": 3, "total_tokens": 3}}}, '
        '"error": null}\n'
    )


def test_base64_is_of_little_endian_float32(tmp_path: Path) -> None:
    (one,) = answers(tmp_path, line(input=["abc", "a"], encoding_format="base64"))
    texts = [row["embedding"] for row in one["response"]["body"]["data"]]
    vectors = [np.frombuffer(base64.b64decode(text), "<f4").tolist() for text in texts]
    assert vectors == [[3.0, 3.0], [1.0, 1.0]]


def test_dimensions_of_a_line_go_before_those_of_the_job(tmp_path: Path) -> None:
    own, of_job = answers(tmp_path, line(input="a", dimensions=4), line("b", input="a"), options=Options(dimensions=3))
    assert [len(checked(one).data[0].embedding) for one in (own, of_job)] == [4, 3]


def test_the_keys_of_a_body_are_known_to_the_openai_package() -> None:
    assert set(EmbeddingBody.model_fields) <= set(EmbeddingCreateParams.__annotations__)


def test_null_is_no_option_and_a_checkpoint_is_its_served_name(tmp_path: Path) -> None:
    (one,) = answers(tmp_path, line(model="org/m", input="a", dimensions=None, encoding_format=None, user="me"))
    assert checked(one).model == "org/m"


@pytest.mark.parametrize(
    ("given", "code", "says", "custom_id"),
    [
        (b"{", "invalid_json_line", "Line 2 is not JSON: ", None),
        (b"\xff", "invalid_json_line", "Line 2 holds bytes that are not UTF-8.", None),
        (b"5", "invalid_json_line", "Line 2 holds a number; an object was expected.", None),
        (b"{}", "invalid_request", "Line 2: 'custom_id' must be a string.", None),
        (b'{"custom_id": 5}', "invalid_request", "Line 2: 'custom_id' must be a string.", None),
        (line(input="again"), "duplicate_custom_id", "Line 2: an earlier line has the custom_id 'a'.", "a"),
        (line("b", method="GET", input="a"), "invalid_request", "Line 2: 'method' must be 'POST'.", "b"),
        (line("b", url="/v1/moderations", input="a"), "url_mismatch", "Given: '/v1/moderations'", "b"),
        (
            b'{"custom_id": "b", "method": "POST", "url": "/v1/embeddings", "body": []}',
            "invalid_request",
            "Line 2: 'body' must be an object.",
            "b",
        ),
    ],
)
def test_a_line_that_is_no_request(tmp_path: Path, given: bytes, code: str, says: str, custom_id: str | None) -> None:
    before, one, after = answers(tmp_path, line(input="a"), given, line("c", input="a"))
    assert checked(before)
    assert checked(after)
    assert (one["custom_id"], one["response"], one["error"]["code"]) == (custom_id, None, code)
    assert says in one["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "code", "says"),
    [
        ({"model": "other", "input": "a"}, 404, "model_not_found", "This job is of the model 'm'. Given: 'other'"),
        ({}, 400, "invalid_request", "The body has no 'input'."),
        ({"input": []}, 400, "invalid_request", "'input' of the body: a string, a list of token ids, or a list of one"),
        ({"input": [[]]}, 400, "invalid_request", "'input' of the body: "),
        ({"input": ["a", 5]}, 400, "invalid_request", "'input' of the body: "),
        ({"input": ["a"] * 2049}, 400, "invalid_request", "of 1 to 2,048 inputs."),
        ({"input": [True]}, 400, "invalid_request", "'input' of the body: "),
        ({"input": "a", "dimensions": 0}, 400, "invalid_request", "'dimensions' of the body: "),
        ({"input": "a", "dimensions": "3"}, 400, "invalid_request", "'dimensions' of the body: "),
        ({"input": ["a", "b"], "dimensions": 9}, 400, "invalid_request", "`opts.dimensions` must be at most 8."),
        ({"input": "a", "encoding_format": "hex"}, 400, "invalid_request", "'encoding_format' of the body: "),
        ({"input": [True] * 100_000}, 400, "invalid_request", "'input' of the body: "),
        ({"input": "a", "truncate": True}, 400, "invalid_request", "The body has a key that is not known: 'truncate'."),
        ({"input": " "}, 400, "empty", "The text is empty."),
        ({"input": ["a", ""]}, 400, "empty", "Input 1: The text is empty."),
        ({"input": "\ud800"}, 400, "invalid_request", "The text cannot be UTF-8"),
        ({"input": "long"}, 400, "too_long", "The text is too long."),
        ({"input": ["a", "long"]}, 400, "too_long", "Input 1: The text is too long."),
        ({"input": "refused"}, 503, "overloaded", "Try later."),
        ({"input": "burst"}, 500, "backend", "The engine failed."),
    ],
)
def test_a_request_at_fault(tmp_path: Path, body: dict[str, Any], status: int, code: str, says: str) -> None:
    one, after = answers(tmp_path, line(**body), line("b", input="a"))
    assert checked(after)
    assert (one["custom_id"], one["response"]["status_code"], one["error"]) == ("a", status, None)
    error = one["response"]["body"]["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["code"] == code
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert says in error["message"]


def test_a_request_that_expires_has_openais_code(tmp_path: Path) -> None:
    (one,) = answers(tmp_path, line(input="late"))
    assert (one["response"], one["error"]) == (None, {"code": "batch_expired", "message": "The deadline passed."})


def test_a_fleet_that_cannot_embed_ends_the_job(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTask):
        run_job(tmp_path, line(input="a"), options=Options(dimensions=9))


def test_a_custom_id_is_once_in_all_files(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / f"{name}.jsonl").write_bytes(line(input="a") + b"\n" + line(name + "b", input="a"))
    lines = answers(tmp_path)
    assert [one["custom_id"] for one in lines] == ["a", "1b", "a", "2b"]
    assert [one["error"] and one["error"]["code"] for one in lines] == [None, None, "duplicate_custom_id", None]
    assert len({one["id"] for one in lines}) == 4


def test_interrupted_anywhere_a_job_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 4)
    monkeypatch.setattr(part_writer, "PART_ROWS", 4)
    lines = [line(str(number % 19), input="a" * (1 + number)) for number in range(25)]
    (tmp_path / "whole").mkdir()
    done = run_job(tmp_path / "whole", *lines)
    assert (done.rows, done.failed) == (25, 6)
    (tmp_path / "in.jsonl").write_bytes((tmp_path / "whole" / "in.jsonl").read_bytes())
    for most in (0, 3, 5, 8):
        with pytest.raises(KeyboardInterrupt):
            run_job(tmp_path, client=Vectors(most))
    run_job(tmp_path)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole" / "out.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("name", "task", "options", "says"),
    [
        ("out.jsonl", "classify", NO_OPTIONS, "for the task embed, and not for classify: of its endpoints"),
        ("out.jsonl", "embed", Options(dtype="ubinary"), "has vectors of float32, and not ubinary."),
        ("out.csv", "embed", NO_OPTIONS, "out.csv: OpenAI's batch format is JSON Lines"),
    ],
)
def test_jobs_that_the_format_has_not(tmp_path: Path, name: str, task: str, options: Options, says: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(line(input="a"))
    with (
        open_reader(tmp_path / "in.jsonl", "text", standard_format=OPENAI, model="m") as reader,
        pytest.raises(TableError, match=says),
    ):
        JobOutput(tmp_path / name, task, "m", options, standard_format=OPENAI).open(reader)
    with pytest.raises(TableError, match="is JSON Lines"):
        open_reader(tmp_path / "in.csv", "text", standard_format=OPENAI)


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_BODIES = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("model", "input", "dimensions", "encoding_format", "user"), _JSON | st.just("m"))
)
_REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        "custom_id": _JSON | st.text(max_size=2),
        "method": _JSON | st.just("POST"),
        "url": _JSON | st.just("/v1/embeddings"),
        "body": _JSON | _BODIES,
    },
)
_LINES = st.binary(max_size=40).map(lambda one: one.replace(b"\n", b" ")) | _REQUESTS.map(
    lambda one: json.dumps(one).encode()
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(_LINES.filter(lambda one: bool(one.strip())), min_size=1, max_size=12))
def test_any_line_has_one_line_of_the_output(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    found = answers(tmp_path_factory.mktemp("job"), *lines)
    assert len(found) == len(lines)
    for one in found:
        assert list(one) == ["id", "custom_id", "response", "error"]
        assert (one["response"] is None) == (one["error"] is not None)
    assert len({one["id"] for one in found}) == len(lines)
    ids = [one["custom_id"] for one in found if one["response"] is not None]
    assert len(ids) == len(set(ids))


@settings(max_examples=examples(50))
@given(st.lists(st.text(st.characters(codec=None), max_size=3)))
def test_seen_ids_are_a_set(texts: list[str]) -> None:
    known: set[str] = set()
    with SeenIds() as seen:
        for text in texts:
            assert seen.add(text) == (text not in known)
            known.add(text)
