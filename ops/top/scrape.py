"""One scrape of a metrics port: of a worker, or of a supervisor with all its members."""

import http.client
import urllib.request
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from penstock.ops.top.errors import BadAddress, NoAnswer
from penstock.worker.telemetry.metric_definitions import METRICS

DEFAULT_ADDRESS = "http://127.0.0.1:9100"
_TIMEOUT_S = 2.0  # a supervisor waits 1 s for a member that does not answer
_MAX_BYTES = 64 << 20
_NAMES = tuple(one.family for one in METRICS.values())
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # members are inside


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
    if not is_complete:
        raise BadAddress(f"An address is a port, HOST:PORT or a URL, such as {DEFAULT_ADDRESS}. Given: {address!r}")
    return text if parts.path.strip("/") else f"{text.rstrip('/')}/metrics"


def scrape(address: str) -> Scrape:
    """Fetch and sort the samples of a normalized address, within two seconds of silence. Raises NoAnswer."""
    try:
        with _OPENER.open(address, timeout=_TIMEOUT_S) as answer:
            text = answer.read(_MAX_BYTES).decode()
        return _sorted_samples(text, address)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise NoAnswer(f"{address} does not answer: {getattr(reason, 'strerror', None) or reason}") from error
    except (ValueError, KeyError, IndexError) as error:  # of the decoder and the parser
        raise NoAnswer(f"{address} does not answer with metrics") from error


def _sorted_samples(text: str, address: str) -> Scrape:
    workers: dict[str, dict[SampleKey, float]] = {}
    states: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        if not family.name.startswith(_NAMES):
            continue
        for sample in family.samples:
            labels = dict(sample.labels)
            if sample.name == "penstock_members":
                states[labels["state"]] = int(sample.value)
                continue
            worker = labels.pop("worker", "")
            workers.setdefault(worker, {})[SampleKey(sample.name, tuple(sorted(labels.items())))] = sample.value
    if not workers and not states:
        raise NoAnswer(f"{address} answers, but with no metric of penstock")
    return Scrape(workers, states)
