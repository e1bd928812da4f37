"""`penstock drift` on files, as `penstock embed`, `classify` and `rerank` write them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.producer.answer_stream import Result
from penstock.producer.errors import TooLong
from penstock.producer.files import JobOutput, open_reader
from penstock.producer.wire.messages import NO_OPTIONS, Classification, Options
from tests.ops.command_line import penstock

Rows = Sequence[Mapping[str, Any]]


def jsonl(path: Path, rows: Rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def output_of(path: Path, task: str, results: Sequence[Result], options: Options = NO_OPTIONS, **own: Any) -> str:
    """A job's output for inputs with these columns; `own` are further columns of the input, the same in each row."""
    suffix = path.suffix
    rows = [{"id": number, "text": f"text {number}", **own} for number in range(len(results))]
    source = path.with_name(f"in-{path.stem}{suffix}")
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), source)
    else:
        jsonl(source, rows)
    with open_reader(source, "text") as reader, JobOutput(path, task, options=options).open(reader) as writer:
        done = 0
        for block in reader:
            writer.write(block, results[done : done + len(block.texts)])
            done += len(block.texts)
    return str(path)


def report(*args: str, code: int = 0) -> dict[str, Any]:
    exit_code, text = penstock("drift", *args, "--json")
    assert exit_code == code, text
    found: dict[str, Any] = json.loads(text)
    return found


def refusal(*args: str) -> str:
    code, text = penstock("drift", *args)
    assert code == 2, text
    return text


def vectors(seed: int, rows: int = 40, dim: int = 8) -> list[np.ndarray[Any, Any]]:
    return list(np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32))


def labels(*names: str) -> list[Classification]:
    return [Classification((name,), (0.9,)) for name in names]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_vectors_of_two_jobs(tmp_path: Path, suffix: str) -> None:
    """The input has a column of the result's name."""
    ours = vectors(0)
    theirs = [*ours[:-1], np.roll(ours[-1], 1)]
    first = output_of(tmp_path / f"a{suffix}", "embed", ours, embedding="of the input")
    second = output_of(tmp_path / f"b{suffix}", "embed", theirs, embedding="of the input")
    found = report(first, second)
    want = ours[-1] @ theirs[-1] / np.linalg.norm(ours[-1]) ** 2
    assert (found["kind"], found["pairs"], found["measured"]["dimensions"]) == ("vectors", 40, [8, 8])
    assert found["measured"]["cosine"]["min"] == pytest.approx(want, abs=1e-6)
    assert found["measured"]["cosine"]["median"] == pytest.approx(1.0)
    assert found["worst"][1].endswith(" 40")
    assert 0.8 < found["measured"]["overlap"] < 1.0
    assert report(first, first, "--min-cosine", "1")["passed"]
    assert report(first, second, "--min-cosine", "0.99", code=1)["missed"] == [
        f"The least cosine is {want:.6f}; at least 0.99 is asked for."
    ]


def test_vectors_of_other_dimensions_are_compared_by_their_neighbours(tmp_path: Path) -> None:
    ours = vectors(0)
    wider = [np.concatenate([vector, vector]) for vector in ours]
    first = output_of(tmp_path / "a.jsonl", "embed", ours)
    second = output_of(tmp_path / "b.parquet", "embed", wider)
    found = report(first, second)["measured"]
    assert (found["cosine"], found["overlap"], found["dimensions"]) == (None, 1.0, [8, 16])
    assert "8 and 16 dimensions have no cosine" in refusal(first, second, "--min-cosine", "0.9")


@pytest.mark.parametrize("top_k", [1, 3])
def test_labels_of_two_jobs_and_rows_that_failed(tmp_path: Path, top_k: int) -> None:
    options = Options(top_k=top_k)
    ours: list[Result] = [*labels("a", "a", "b", "b"), TooLong("a text of 600 tokens")]
    theirs = [*labels("a", "b", "b", "a"), *labels("a")]
    first = output_of(tmp_path / "a.parquet", "classify", ours, options)
    second = output_of(tmp_path / "b.jsonl", "classify", theirs, options)
    found = report(first, second)
    assert [one["unanswered"] for one in found["versions"]] == [1, 0]
    assert (found["pairs"], found["measured"]["share"]) == (4, 0.5)
    assert [(flow["before"], flow["after"]) for flow in found["measured"]["flows"]] == [("a", "b"), ("b", "a")]
    _, screen = penstock("drift", first, second, "--max-label-changes", "0.5")
    assert "row 5 has the error too_long: a text of 600 tokens." in screen
    assert "Within the bounds." in screen


def test_scores_of_two_jobs_are_compared_by_their_ranks(tmp_path: Path) -> None:
    first = output_of(tmp_path / "a.jsonl", "rerank", [0.1, 0.2, 0.2, 0.9])
    other_scale = output_of(tmp_path / "b.jsonl", "rerank", [-5.0, 1.0, 1.0, 7.0])
    found = report(first, other_scale)["measured"]
    assert found == {"spearman": pytest.approx(1.0), "median_move": 0.0, "largest_move": 0.0}
    swapped = output_of(tmp_path / "c.jsonl", "rerank", [0.9, 0.2, 0.2, 0.1])
    assert report(first, swapped)["measured"]["spearman"] == pytest.approx(-1.0)
    assert report(first, swapped)["measured"]["largest_move"] == 3.0
    constant = output_of(tmp_path / "d.jsonl", "rerank", [0.5] * 4)
    assert report(first, constant)["measured"]["spearman"] is None
    assert "--min-cosine is a bound of vectors" in refusal(first, swapped, "--min-cosine", "0.5")


def test_rows_in_another_order_are_paired_by_a_column(tmp_path: Path) -> None:
    rows = [{"id": number, "label": "ab"[number % 2], "score": 1.0, "error": None} for number in range(9)]
    first = jsonl(tmp_path / "a.jsonl", rows)
    second = jsonl(tmp_path / "b.jsonl", rows[::-1])
    assert report(first, second, "--key-column", "id")["measured"]["changed"] == 0
    assert report(first, second)["other_inputs"] == 8
    assert "has no 'key', by which rows are paired. It has: id, label" in refusal(first, second, "--key-column", "key")


def test_a_field_by_its_pointer(tmp_path: Path) -> None:
    rows = [{"id": number, "by": {"model": {"label": "a", "score": 1.0}}} for number in range(3)]
    first = jsonl(tmp_path / "a.jsonl", rows)
    assert report(first, first, "--result-field", "/by/model")["pairs"] == 3
    alone = jsonl(tmp_path / "b.jsonl", [{"label": "b", "score": 1.0}] * 3)
    assert report(alone, alone, "--result-field", "")["pairs"] == 3
    assert "ends in no columns of penstock embed, classify or rerank" in refusal(first, first)


def test_a_bound_is_not_judged_by_few_pairs(tmp_path: Path) -> None:
    rows = [{"id": number, "label": "a", "score": 1.0, "error": None} for number in range(10)]
    first, second = jsonl(tmp_path / "a.jsonl", rows), jsonl(tmp_path / "b.jsonl", rows[:4])
    assert report(first, second)["passed"] is None
    found = report(first, second, "--max-label-changes", "0.5", code=1)
    assert found["missed"] == ["4 of 10 keys with an answer have a pair: too few to judge."]


EMBEDDED = [{"text": "a", "embedding": [1.0, 0.0], "error": None}]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": "a", "embedding": [1.0, NaN], "error": null}', "line 1 holds NaN or an infinity in its vector"),
        ('{"text": "a", "embedding": [1.0, "NaN"], "error": null}', "holds NaN among the numbers of its vector"),
        ('{"text": "a", "embedding": [1.0, 1' + 400 * "0" + '], "error": null}', "holds NaN or an infinity"),
        ('{"text": "a", "embedding": [0.0, 0.0], "error": null}', "holds a vector of zeros"),
        ('{"text": "a", "embedding": [3, 255], "error": null}', "holds a vector of integers"),
        ('{"text": "a", "embedding": [[1.0], [2.0]], "error": null}', "holds [1.0] among the numbers"),
        ('{"text": "a", "embedding": [], "error": null}', "holds [], which is no answer"),
        ('{"text": "a", "embedding": {"indices": [1]}, "error": null}', "holds an object of indices"),
        ('{"text": "a", "embedding": true, "error": null}', "holds true, which is no answer"),
        ('{"text": "a", "label": "x", "score": 1.0, "error": null}', "answers of two kinds: vectors of 2 dimensions"),
        ('{"text": "b", "embedding": [1.0, 0.0], "error": null}', "differ in what is beside the answer"),
        ('{"text": "a", "embedding": [1.0', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds no JSON object"),
        ("", "holds no record"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_its_place(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "b.jsonl").write_text(line + "\n")
    assert says in refusal(jsonl(tmp_path / "a.jsonl", EMBEDDED), str(tmp_path / "b.jsonl"))


def test_a_version_with_answers_of_two_kinds_is_refused(tmp_path: Path) -> None:
    longer = [*EMBEDDED, {"text": "b", "embedding": [1.0, 0.0, 0.0], "error": None}]
    first = jsonl(tmp_path / "a.jsonl", [*EMBEDDED, {**EMBEDDED[0], "text": "b"}])
    assert "dimensions, of the same version." in refusal(first, jsonl(tmp_path / "b.jsonl", longer))


def test_names_that_are_no_files_and_no_topics(tmp_path: Path) -> None:
    assert "There is no file nowhere.jsonl." in refusal("nowhere.jsonl", "nowhere.jsonl")
    assert "neither a file (.jsonl, .parquet) nor a topic" in refusal("a/b.csv", "a/b.csv")
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    assert "is not a Parquet file" in refusal(str(tmp_path / "a.parquet"), str(tmp_path / "a.parquet"))


def test_no_label_controls_the_terminal(tmp_path: Path) -> None:
    rows = [{"label": "a\x1b[2J", "score": 1.0, "error": None}, {"label": "b", "score": 1.0, "error": None}]
    first, second = jsonl(tmp_path / "a.jsonl", rows), jsonl(tmp_path / "b.jsonl", [rows[1], rows[1]])
    code, screen = penstock("drift", first, second)
    assert code == 0
    assert "\x1b" not in screen
    assert "\x1b" not in refusal(first, jsonl(tmp_path / "c.jsonl", [{"\x1b[2J": 1}]))
    assert "a\N{REPLACEMENT CHARACTER}[2J → b" in screen
