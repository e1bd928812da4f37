"""The pace of fetches: several records at once, but no wait at a low rate."""

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import Fetcher

from penstock.worker.kafka.fetching.lean_fetcher import LeanFetcher

SOURCE = TopicPartition("requests", 0)


class Broker:
    """aiokafka's part of one fetch: `records` are found when the fetcher takes them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[int] = []
        monkeypatch.setattr(Fetcher, "__init__", lambda fetcher: None)
        monkeypatch.setattr(Fetcher, "fetched_records", self._found)
        monkeypatch.setattr(Fetcher, "_proc_fetch_request", self._sent)

    async def _found(self, *_: Any) -> dict[TopicPartition, list[int]]:
        found, self.records = self.records, []
        return {SOURCE: found} if found else {}

    async def _sent(self, *_: Any) -> bool:
        return False


@pytest.mark.parametrize(("num_records", "is_paced"), [(1, False), (3, False), (4, True), (200, True)])
async def test_only_a_fetch_that_brought_several_records_is_followed_later(
    monkeypatch: pytest.MonkeyPatch, num_records: int, is_paced: bool
) -> None:
    broker = Broker(monkeypatch)
    fetcher: Any = LeanFetcher()
    monkeypatch.setattr("penstock.worker.kafka.fetching.lean_fetcher.time.monotonic", lambda: 100.0)
    for _ in range(2):  # what an earlier fetch has brought does not count
        await fetcher._proc_fetch_request(None, 7, None)
    broker.records = list(range(num_records))
    await fetcher.fetched_records([SOURCE])
    assert fetcher._paced(100.001) == ({7: pytest.approx(0.003)} if is_paced else {})
    assert fetcher._paced(100.0041) == {}
    await fetcher._proc_fetch_request(None, 7, None)
    assert fetcher._paced(100.001) == {}
