"""Cost tables on real files: tables by key, and damaged or unwritable files."""

import os
import sqlite3
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from penstock.cache import CostKey, CostTables
from tests.examples import examples

KEY = CostKey("AMD EPYC, 2 cores", "minilm", "0123abcd", "bfloat16", "penstock 0.1.0, torch 2.11.0, packed")
TABLE = {"floor_s": 0.001, "factors": [[1.0, 1.25], [0.9, 1.0]], "padded": False}
FIELDS = [field.name for field in fields(CostKey)]


async def test_a_table_is_there_for_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "not" / "yet" / "costs.sqlite"
    with capture_logs() as logs:
        assert await CostTables(path).get(KEY) is None
        assert not path.exists()  # asking creates nothing
        assert await CostTables(path).put(KEY, TABLE)
        assert await CostTables(path).get(KEY) == TABLE
    assert logs == []


async def test_a_second_table_replaces_the_first(tmp_path: Path) -> None:
    tables = CostTables(tmp_path / "costs")
    await tables.put(KEY, TABLE)
    await tables.put(KEY, {"other": 1})
    assert await tables.get(KEY) == {"other": 1}


async def test_what_a_precision_loses_is_kept_beside_the_table_of_its_key(tmp_path: Path) -> None:
    tables = CostTables(tmp_path / "costs")
    await tables.put_loss(KEY, {"cosine": 0.9995})
    assert await tables.get(KEY) is None
    await tables.put(KEY, TABLE)
    assert await tables.get_loss(KEY) == {"cosine": 0.9995}
    assert await tables.get_loss(replace(KEY, revision="another")) is None
    assert await tables.keys() == [KEY]


async def test_a_file_of_an_earlier_version_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    await CostTables(path).put(KEY, TABLE)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE IF EXISTS precision_loss")
    db.close()
    content = bytearray(path.read_bytes())
    content[18] = 3  # SQLite does not write a file of such a version, whoever asks
    path.write_bytes(content)
    with capture_logs() as logs:
        assert await CostTables(path).get(KEY) == TABLE
        assert await CostTables(path).keys() == [KEY]
    assert logs == []


@pytest.mark.parametrize("field", FIELDS)
async def test_a_key_that_differs_in_anything_has_its_own_table(tmp_path: Path, field: str) -> None:
    tables = CostTables(tmp_path / "costs")
    other = replace(KEY, **{field: "another"})
    await tables.put(KEY, TABLE)
    assert await tables.get(other) is None
    await tables.put(other, {"other": 1})
    assert (await tables.get(KEY), await tables.get(other)) == (TABLE, {"other": 1})


async def test_the_nearest_key_tells_what_is_different(tmp_path: Path) -> None:
    tables = CostTables(tmp_path / "costs")
    assert await tables.nearest(KEY) is None
    near, far = replace(KEY, runtime="older"), replace(KEY, runtime="older", device="H200")
    for key in (far, near, replace(KEY, model="another")):
        await tables.put(key, TABLE)
    assert await tables.nearest(KEY) == near
    assert KEY.differences(near) == {"runtime": "older"}
    assert KEY.differences(KEY) == {}


async def test_a_revision_has_the_names_that_it_was_served_under(tmp_path: Path) -> None:
    tables = CostTables(tmp_path / "costs")
    assert await tables.served_names() == {}
    await tables.put(KEY, TABLE)
    for name in ("mini", "mini", "other"):
        await tables.add_served_name("0123abcd", name)
    await tables.add_served_name("4567", "mini")
    assert await CostTables(tmp_path / "costs").served_names() == {"0123abcd": {"mini", "other"}, "4567": {"mini"}}


async def assert_one_warning_and_no_table(path: Path) -> None:
    tables = CostTables(path)
    with capture_logs() as logs:
        assert await tables.get(KEY) is None
        assert await tables.nearest(KEY) is None
        assert not await tables.put(KEY, TABLE)
        assert await tables.get(KEY) is None
    assert [log["event"] for log in logs] == ["cost_tables_unusable"]
    assert logs[0]["path"] == str(path)
    assert logs[0]["log_level"] == "warning"


async def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    path.write_bytes(b"another program's file\n" * 100)
    await assert_one_warning_and_no_table(path)
    assert path.read_bytes() == b"another program's file\n" * 100


async def test_a_directory_in_its_place_is_a_warning(tmp_path: Path) -> None:
    await assert_one_warning_and_no_table(tmp_path)


async def test_a_path_below_a_file_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tables = CostTables(tmp_path / "file" / "costs")
    with capture_logs() as logs:
        assert await tables.get(KEY) is None
        await tables.put(KEY, TABLE)
    assert [log["event"] for log in logs] == ["cost_tables_unusable"]


async def test_a_table_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    await CostTables(path).put(KEY, TABLE)
    path.chmod(0o400)
    if os.access(path, os.W_OK):
        pytest.skip("this user may write everything")
    with capture_logs() as logs:
        assert await CostTables(path).get(KEY) == TABLE
    assert logs == []


@pytest.mark.parametrize(
    "value", ["", "{", "[1]", "7", "null", b"\xff\xfe", 12.5, "[" * 100_000, '{"a": ' * 100_000, "9" * 5000]
)
async def test_a_damaged_row_is_a_warning_until_it_is_put_again(tmp_path: Path, value: object) -> None:
    path = tmp_path / "costs"
    await CostTables(path).put(KEY, TABLE)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE cost_table SET value = ?", (value,))
    db.close()
    tables = CostTables(path)
    with capture_logs() as logs:
        assert await tables.get(KEY) is None
        await tables.put(KEY, TABLE)
        assert await tables.get(KEY) == TABLE
    assert [log["event"] for log in logs] == ["cost_tables_unusable"]


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(data=st.data())
async def test_bytes_changed_anywhere_give_a_table_or_none_and_never_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("costs") / "costs"
    await CostTables(path).put(KEY, TABLE)
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 20))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    tables = CostTables(path)
    with capture_logs():
        found: dict[str, Any] | None = await tables.get(KEY)
        nearest = await tables.nearest(KEY)
        await tables.put(KEY, TABLE)
    assert found is None or isinstance(found, dict)
    assert nearest is None or all(isinstance(value, str) for value in astuple(nearest))


async def test_values_that_are_no_json_are_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        await CostTables(tmp_path / "costs").put(KEY, {"floor_s": float("nan")})


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
async def test_its_files_are_its_owners_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "cache" / "penstock" / "costs"
    before = os.umask(umask)
    try:
        await CostTables(path).put(KEY, TABLE)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert {parent.stat().st_mode & 0o777 for parent in (path.parent, path.parent.parent)} == {0o700}


async def test_a_fifo_in_its_place_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "costs"
    os.mkfifo(path)
    await assert_one_warning_and_no_table(path)
