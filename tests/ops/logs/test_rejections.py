"""Rejected requests: the counts of worker_load, and lines only where a worker ended before it could count them."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.logs.lines import source
from penstock.ops.logs.report.charts import Spans
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.facts import facts
from penstock.ops.logs.totals.series import slow_periods
from tests.ops.command_line import penstock
from tests.ops.logs.helpers import FLEET, HOST_A, HOST_B, SAMPLES, digest, line, lines, rejections

WORKER: dict[str, Any] = {"pid": 7, "worker": 0, "service.instance.id": "host-a:7"}


def clock(second: float) -> str:
    minutes, seconds = divmod(second, 60)
    return f"2026-11-22T03:{int(minutes):02}:{seconds:09.6f}Z"


def refused(second: float, code: str = "too_long", **fields: Any) -> str:
    return line("request_refused", clock(second), code=code, records=1, **{**WORKER, **fields})


def load(second: float, rejected: dict[str, int], **fields: Any) -> str:
    missed = {"arrived_late": 0, "queued": rejected.get("expired", 0), "predicted_wrong": 0}
    overloaded = rejected.get("overloaded", 0)
    counts = {"answered": 10, "rejected": rejected, "overloaded": overloaded, "missed": missed}
    return line("worker_load", clock(second), **{**counts, **WORKER, **fields})


def by_code(found: Digest) -> dict[str, int]:
    return {code: one.count for code, one in found.rejections.by_code.items() if one.count}


def written(folder: Path, *texts: str) -> Path:
    path = folder / "worker.log"
    path.write_text("".join(texts))
    return path


@pytest.mark.parametrize("path", [FLEET, HOST_A, HOST_B], ids=lambda path: str(path.name))
def test_all_rejections_of_real_logs_are_counted_once(path: Path) -> None:
    assert by_code(digest(path)) == rejections(path)
    assert len(rejections(path)) >= 2


def test_a_limited_log_has_the_count_of_the_load(tmp_path: Path) -> None:
    """2,000 requests in 8 s, of which 100 lines a second were logged."""
    flood = [refused(second + place / 100) for second in range(2) for place in range(100)]
    late = refused(9, suppressed=1634)
    assert by_code(digest(written(tmp_path, *flood, late, load(10, {"too_long": 2000})))) == {"too_long": 2000}


def test_without_a_load_lines_that_were_left_out_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, refused(0), refused(1), refused(2, suppressed=1634))
    assert by_code(digest(path)) == {"too_long": 1637}


def test_lines_after_the_last_load_are_counted_and_what_was_left_out_before_it_is_not(tmp_path: Path) -> None:
    text = [refused(5), load(10, {"too_long": 2000}), refused(12, suppressed=1634), refused(13, "overloaded")]
    path = written(tmp_path, *text, refused(14, "expired", suppressed=20), refused(15, "expired"))
    assert by_code(digest(path)) == {"too_long": 2001, "overloaded": 1, "expired": 22}
    totals = digest(path).series.totals()
    assert (totals["overloaded"], totals["cause_unknown"]) == (1, 22)
    assert sum(one.missed for one in slow_periods(digest(path).series)) == 23


def test_a_load_counts_for_its_own_process_only(tmp_path: Path) -> None:
    other: dict[str, Any] = {"pid": 8, "worker": 1, "service.instance.id": "host-a:8"}
    text = refused(1) + refused(2, **other) + load(3, {"too_long": 5})
    assert by_code(digest(written(tmp_path, text))) == {"too_long": 6}


def test_a_load_counts_the_lines_of_its_own_moment_whatever_follows_it(tmp_path: Path) -> None:
    text = refused(1) + load(1, {"too_long": 1}) + line("worker_ready", clock(1), **WORKER)
    assert by_code(digest(written(tmp_path, text))) == {"too_long": 1}


def test_a_container_that_is_started_again_has_the_same_process_id(tmp_path: Path) -> None:
    """The first was killed before it logged a load."""
    again = line("worker_starting", clock(4), **WORKER)
    path = written(tmp_path, refused(1), refused(2, suppressed=8), again, refused(5), load(6, {"too_long": 1}))
    assert by_code(digest(path)) == {"too_long": 11}


def test_a_log_of_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BLOCK_BYTES", 4096)
    path = written(tmp_path, *[refused(one) for one in range(600)], load(601, {"too_long": 9}))
    assert 480 < by_code(digest(path))["too_long"] < 560  # the load has counted no line of minutes before it
    loads = [refused(one) + (load(one, {"too_long": 500}) if one % 10 == 9 else "") for one in range(600)]
    assert by_code(digest(written(tmp_path, *loads))) == {"too_long": 30_000}


@pytest.mark.parametrize("is_killed", [False, True])
def test_lines_of_two_processes_between_their_loads(is_killed: bool, tmp_path: Path) -> None:
    other: dict[str, Any] = {"pid": 8, "worker": 1, "service.instance.id": "host-a:8"}
    texts = []
    for second in range(40):
        texts += [refused(second + place / 8, ("too_long", "overloaded")[place % 2]) for place in range(8)]
        texts += [refused(second + 0.9, suppressed=5), refused(second + 0.95, **other)]
        if second % 10 == 9:
            texts += [load(second + 0.5, {"too_long": 300, "overloaded": 10})]
    texts.sort(key=lambda text: json.loads(text)["timestamp"])
    ends = [] if is_killed else [load(40, {"too_long": 70}), load(41, {"empty": 1}, **other)]
    expected = {"too_long": 4 * 300 + 70, "overloaded": 40, "empty": 1}
    if is_killed:  # after the last load, at 39.5 s: two lines of each code and five that were left out
        expected = {"too_long": 4 * 300 + 2 + 5 + 40, "overloaded": 40 + 2}
    assert by_code(digest(written(tmp_path, *texts, *ends))) == expected


@pytest.mark.parametrize("given", [(FLEET,), (HOST_B,), (SAMPLES,)], ids=str)
def test_every_screen_has_the_same_count(given: tuple[Path, ...]) -> None:
    found = digest(*given)
    total = found.rejections.total
    assert total == sum(fact.value for fact in facts(found).values() if fact.name.startswith("rejected: "))
    assert total == pytest.approx(found.series.totals()["refused"])
    assert total == pytest.approx((Spans(found).columns["refused"]).sum())
    shown = f"{total:,}"
    for command in ("summary", "errors"):
        _, text = penstock("logs", command, *map(str, given))
        assert re.search(rf"(rejected|Rejected requests) {shown}\b", text), text
    late = [found.rejections.by_code[code].count for code in ("overloaded", "expired")]
    in_time = found.series.totals()["predicted_wrong"]
    assert sum(one.missed for one in slow_periods(found.series)) == pytest.approx(sum(late) + in_time)


def test_a_filter_by_code_takes_the_counts_of_loads(tmp_path: Path) -> None:
    rejected = {"too_long": 2000, "expired": 30, "empty": 0}
    path = written(tmp_path, refused(1), refused(2, "expired"), load(3, rejected), refused(4))
    for filters, expected in (
        (("code=too_long",), {"too_long": 2001}),
        (("code=too_*,empty", "event=request_refused"), {"too_long": 2001}),
        (("code!=too_long",), {"expired": 30}),
        (("code=expired", "worker=0"), {"expired": 30}),
        (("code=expired", "worker=1"), {}),
        (("event=request_refused",), {"too_long": 2001, "expired": 30}),
        (("event=worker_load",), {"too_long": 2000, "expired": 30}),
        (("event=worker_ready",), {}),
        (("code=too_long", "records=1"), {"too_long": 2}),  # a load does not tell how many were rejected together
    ):
        assert by_code(digest(path, filters=filters)) == expected, filters
    found = digest(path, filters=("code=expired",))
    assert found.series.totals()["answered"] == 0
    assert sum(one.missed for one in slow_periods(found.series)) == 30


def test_lines_of_warnings_that_were_left_out_are_counted(tmp_path: Path) -> None:
    path = written(tmp_path, line("sequence_failed", level="warning", suppressed=300))
    found = digest(path)
    assert (found.problems["sequence_failed"].count, found.series.totals()["warnings"]) == (301, 301)


def test_a_code_without_a_line_is_shown_with_the_time_of_its_load(tmp_path: Path) -> None:
    _, text = penstock("logs", "errors", str(written(tmp_path, load(10, {"expired": 3}))))
    assert re.search(r"expired 3 .* 03:00:10 03:00:10 no line of it is here", text)


def test_the_sample_has_rejections_that_no_line_tells() -> None:
    logged = Counter(one["code"] for one in lines(FLEET) if one["event"] == "request_refused")
    assert rejections(FLEET)["expired"] == 111 > logged["expired"] == 0
