"""The benchmark of routes: its figures, and its contestants with a few records."""

import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.bench.common.setup import Setup
from penstock.ops.bench.routes.part_routes import CALLS, run_http, run_null
from penstock.ops.bench.routes.route_tables import SUITE

SERVER = """
import http.server, json, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        (text,) = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        body = json.dumps({"data": [{"embedding": [len(text), 0.5]}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def rounds(*rates: float) -> list[dict[str, Any]]:
    return [{"records_per_s": rate, "cpu_us": {"contestant": 1e6 / rate}} for rate in rates]


def test_figures_are_medians_and_ratios_within_one_run() -> None:
    texts = {"requests": rounds(90, 100, 400), "JSON": rounds(95), "Avro": rounds(80), "FastStream": rounds(50)}
    null = {"at_least_once": rounds(1000), "exactly_once": rounds(900)}
    parts = {"texts": {"result": {"loads": texts}}, "null": {"result": {"loads": null}}}
    found = SUITE.measures({"parts": parts})
    assert found["MiniLM, requests, records/s"] == 100
    assert found["JSON, share of requests"] == 0.95
    assert found["Avro, share of requests"] == 0.8
    assert found["JSON, times FastStream"] == 1.9
    assert found["null, exactly_once over at_least_once"] == 0.9
    assert found["null, at_least_once, µs a record"] == 1000


@pytest.mark.integration
@pytest.mark.slow
def test_a_program_that_calls_a_server_enriches_every_record(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    found = run_http(Setup({"scale": 0.1, "server": f"{sys.executable} {script} {{port}}"}))
    assert found["loads"].keys() == CALLS.keys()
    assert all(one["records_per_s"] > 0 for loads in found["loads"].values() for one in loads)


@pytest.mark.integration
@pytest.mark.slow
def test_a_route_without_a_model_writes_short_records_in_both_deliveries() -> None:
    loads = run_null(Setup({"scale": 0.01}))["loads"]
    assert loads.keys() == {"at_least_once", "exactly_once"}
    assert all(200 < one["output_bytes"] < 260 for rounds in loads.values() for one in rounds)
