"""One scrape of a metrics port: of a worker, or of a supervisor with all its members.

What a port sends may be anything: an answer is bounded in time and size, and only plausible samples are kept.
"""

import http.client
import io
import math
import socket
import time
from collections.abc import Mapping
from contextlib import closing
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from penstock.ops.logs.text import printable
from penstock.worker.telemetry.metric_definitions import METRICS

DEFAULT_ADDRESS = "http://127.0.0.1:9100"
_WITHIN_S = 3.0  # of a connected port: the whole answer. A supervisor waits 1 s for a member that does not answer
_MAX_BYTES = 16 << 20
_MAX_LABEL_CHARS = 64
_MAX_VALUE = 2.0**53  # no count and no time of ours is greater; sums of such values are finite
_NAMES = tuple(one.family for one in METRICS.values())


class TopError(Exception):
    """Members cannot be shown. The message has a remedy."""


class BadAddress(TopError):
    """An address of a metrics port is malformed; the message says what is expected."""


class NoAnswer(TopError):
    """A metrics port does not answer, or not with metrics of penstock."""


class SampleKey(NamedTuple):
    """A time series of one member."""

    name: str
    labels: tuple[tuple[str, str], ...]  # sorted, without `worker`

    def label(self, name: str) -> str:
        """A label's value; empty without it."""
        return dict(self.labels).get(name, "")


Values = Mapping[SampleKey, float]


class Scrape(NamedTuple):
    """The samples of one port."""

    workers: Mapping[str, Values]  # by the label `worker`; "" for a worker without a supervisor
    states: Mapping[str, int]  # how many members a supervisor has in each state; empty for a single worker


def normalized(address: str) -> str:
    """`9100`, `host:9100`, `http://host:9100` or with a path -> an address of metrics. Raises BadAddress."""
    port = address.removeprefix(":")
    text = f"127.0.0.1:{port}" if port.isdecimal() else address
    text = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(text)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_complete = False
    if not is_complete or not text.isascii() or not text.isprintable() or " " in text:
        raise BadAddress(f"An address is a port, HOST:PORT or a URL, such as {DEFAULT_ADDRESS}. Given: {address!r}")
    return text if parts.path.strip("/") else f"{text.rstrip('/')}/metrics"


def scrape(address: str) -> Scrape:
    """Fetch and sort the samples of a normalized address. Raises NoAnswer, whose message quotes nothing of the port."""
    try:
        text = _fetch(address).decode()
    except TimeoutError as error:
        raise NoAnswer(f"{address} does not answer within {_WITHIN_S:g} s") from error
    except OSError as error:
        raise NoAnswer(f"{address} does not answer: {error.strerror or error}") from error
    except http.client.IncompleteRead as error:
        raise NoAnswer(f"{address} ends its answer too early") from error
    except http.client.HTTPException as error:
        raise NoAnswer(f"{address} does not answer with HTTP") from error
    except UnicodeDecodeError as error:
        raise NoAnswer(f"{address} does not answer with metrics") from error
    return read_samples(text, address)


def read_samples(text: str, address: str) -> Scrape:
    """Sort the samples of an answer in Prometheus' text format. Raises NoAnswer without a sample of penstock."""
    try:
        families = [one for one in text_string_to_metric_families(text) if one.name.startswith(_NAMES)]
    except (ValueError, KeyError, IndexError) as error:  # of the parser
        raise NoAnswer(f"{address} does not answer with metrics") from error
    workers: dict[str, dict[SampleKey, float]] = {}
    states: dict[str, int] = {}
    for sample in (sample for family in families for sample in family.samples if _is_plausible(sample)):
        labels = {name: _shown(value) for name, value in sample.labels.items()}
        if sample.name == "penstock_members":
            states[labels["state"]] = int(sample.value)
            continue
        worker = labels.pop("worker", "")
        workers.setdefault(worker, {})[SampleKey(sample.name, tuple(sorted(labels.items())))] = sample.value
    if not workers and not states:
        raise NoAnswer(f"{address} answers, but with no metric of penstock")
    return Scrape(workers, states)


def _fetch(address: str) -> bytes:
    """The content of an answer. Redirects are not followed, and no proxy is asked: members are inside."""
    parts = urlsplit(address)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    with closing(kind(parts.hostname or "", parts.port, timeout=_WITHIN_S)) as connection:
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request("GET", path, headers={"Connection": "close"})
        received = _received(connection.sock, time.monotonic() + _WITHIN_S)
    if len(received) > _MAX_BYTES:
        raise NoAnswer(f"{address} sends more than {_MAX_BYTES:,} bytes")
    answer = http.client.HTTPResponse(SimpleNamespace(makefile=lambda mode: io.BytesIO(received)))  # type: ignore[arg-type]  # it needs `makefile` alone
    answer.begin()
    if answer.status != http.HTTPStatus.OK:
        raise NoAnswer(f"{address} answers with status {answer.status}")
    return answer.read()


def _received(connected: socket.socket, ends_s: float) -> bytes:
    """All that comes until the other side closes, or a little more than is allowed.

    `ends_s`: of the monotonic clock. A timeout of the socket alone would begin again with each byte.
    """
    received = bytearray()
    while len(received) <= _MAX_BYTES:
        if (left_s := ends_s - time.monotonic()) <= 0:
            raise TimeoutError
        connected.settimeout(left_s)
        if not (data := connected.recv(1 << 16)):
            break
        received += data
    return bytes(received)


def _is_plausible(sample: Sample) -> bool:
    """Whether a sample can be true: false for NaN, in its value or its bound."""
    try:
        bound = float(sample.labels["le"]) if sample.name.endswith("_bucket") else 0.0
    except (KeyError, ValueError):
        return False
    is_counted = sample.name != "penstock_members" or "state" in sample.labels
    return is_counted and 0.0 <= sample.value <= _MAX_VALUE and (0.0 <= bound <= _MAX_VALUE or bound == math.inf)


def _shown(label: str) -> str:
    """A label as a terminal may show it."""
    return printable(label if len(label) <= _MAX_LABEL_CHARS else f"{label[:_MAX_LABEL_CHARS]}…")
