"""Metrics are served where the settings say, and nowhere else by default."""

import pytest
from prometheus_client import CollectorRegistry

from penstock.worker.process import serve_metrics
from penstock.worker.settings import WorkerSettings


@pytest.mark.parametrize(("given", "address"), [(None, "127.0.0.1"), ("0.0.0.0", "0.0.0.0")])
def test_metrics_are_served_on_this_machine_unless_told_otherwise(given: str | None, address: str) -> None:
    options = {"model": "null", "metrics_port": 0} | ({} if given is None else {"metrics_host": given})
    settings = WorkerSettings.model_validate(options)
    server = serve_metrics(settings.metrics_host, settings.metrics_port or 0, CollectorRegistry())
    try:
        assert server.server_address[0] == address
    finally:
        server.shutdown()
        server.server_close()
