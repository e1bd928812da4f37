"""Stalls of the machine and of the broker during a load: they delay every request alike, whatever the workers do.

A thread that sleeps finds the machine's, as jHiccup does (https://github.com/giltene/jHiccup). The acknowledgements of
small records, in a topic that nothing else uses, tell the broker's.
"""

import threading
import time
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException, Producer

_LATE_S = 0.02
_SLEEP_S, _EVERY_S = 0.002, 0.01
_TOPIC = "penstock.bench.probe"
_SETTINGS = {"acks": 1, "linger.ms": 0, "log_level": 0}

_Stalls = list[tuple[float, float]]  # when it was noticed, by perf_counter, and its seconds


class StallWatch:
    """A context manager: watches within it. Each of its two threads takes about a hundredth of a core."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._machine: _Stalls = []
        self._broker: _Stalls = []
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, **_SETTINGS})
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=watch, daemon=True) for watch in (self._sleep, self._send)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        self._producer.purge()

    def stalls_between(self, start: float, until: float) -> dict[str, list[dict[str, float]]]:
        """Both kinds, each with the second since `start` when it was noticed. The moments are of perf_counter."""
        return {
            name: [
                {"at_s": round(at - start, 3), "ms": round(late_s * 1e3, 1)}
                for at, late_s in stalls
                if start <= at < until
            ]
            for name, stalls in (("machine_stalls", self._machine), ("broker_stalls", self._broker))
        }

    def _sleep(self) -> None:
        before = time.perf_counter()
        while not self._is_over.is_set():
            time.sleep(_SLEEP_S)
            now = time.perf_counter()
            _note(self._machine, now, now - before - _SLEEP_S)
            before = now

    def _send(self) -> None:
        while not self._is_over.is_set():
            sent_at = time.perf_counter()

            def acknowledged(error: object, message: object, sent_at: float = sent_at) -> None:
                now = time.perf_counter()
                _note(self._broker, now, now - sent_at)

            try:
                self._producer.produce(_TOPIC, b"", on_delivery=acknowledged)
            except (BufferError, KafkaException):  # the broker stalls: earlier records tell for how long
                time.sleep(_EVERY_S)
            while (left_s := sent_at + _EVERY_S - time.perf_counter()) > 0:
                self._producer.poll(left_s)


def _note(stalls: _Stalls, now: float, late_s: float) -> None:
    if late_s > _LATE_S:
        stalls.append((now, late_s))
