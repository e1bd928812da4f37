"""Settings of SASL and TLS: wrong combinations are refused by name, secrets stay hidden, tokens are renewed."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from aiokafka.errors import AuthenticationFailedError
from pydantic import ValidationError
from typer.testing import CliRunner

from penstock.ops.cli.main import app
from penstock.producer import Client, InvalidRequest
from penstock.producer.settings import KafkaSettings
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.token_source import TokenSource

SCRAM = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256"}
OAUTH = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
HIDDEN = "hunter2-hidden"


def make(**fields: Any) -> KafkaSettings:
    return KafkaSettings(**fields)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"security_protocol": "TLS"}, "security_protocol"),
        ({"security_protocol": "SASL_SSL"}, "sasl_mechanism: needed with security_protocol SASL_SSL"),
        ({**SCRAM, "sasl_mechanism": "GSSAPI"}, "sasl_mechanism"),
        (SCRAM, "sasl_username, sasl_password: needed with sasl_mechanism SCRAM-SHA-256"),
        ({**SCRAM, "sasl_password": HIDDEN}, "sasl_username: needed with sasl_mechanism SCRAM-SHA-256"),
        ({"sasl_password": HIDDEN}, "sasl_password: no effect with security_protocol PLAINTEXT"),
        ({"ssl_ca_location": "ca.pem"}, "ssl_ca_location: no effect with security_protocol PLAINTEXT"),
        ({"ssl_endpoint_identification_algorithm": "none"}, "ssl_endpoint_identification_algorithm: no effect"),
        (
            {"security_protocol": "ssl", "ssl_ca_location": "/missing.pem"},
            "ssl_ca_location: no certificates .*/missing",
        ),
        (
            {"security_protocol": "ssl", "ssl_certificate_location": "a.pem"},
            "ssl_certificate_location and ssl_key_location: give both, or neither",
        ),
        (
            {"security_protocol": "ssl", "ssl_certificate_location": "a.pem", "ssl_key_location": "a.key"},
            "ssl_certificate_location, ssl_key_location, ssl_key_password: the certificate a.pem and the key a.key",
        ),
        (OAUTH, "sasl_oauthbearer_token_endpoint_url, .*client_id, .*client_secret: needed with .* OAUTHBEARER"),
        (
            {**OAUTH, "sasl_oauthbearer_token_endpoint_url": "idp/token"},
            "sasl_oauthbearer_token_endpoint_url\n.*must begin with https:, http: or file:",
        ),
        (
            {**OAUTH, "sasl_oauthbearer_token_endpoint_url": "http://idp:secret@host/token"},
            "must not hold a user or a password",
        ),
    ],
)
def test_a_wrong_combination_is_refused_and_names_the_settings(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence) as raised:
        make(**given)
    assert HIDDEN not in str(raised.value)
    with pytest.raises(InvalidRequest):
        Client(model="m", **given)


def test_names_and_case_are_librdkafkas() -> None:
    settings = make(security_protocol="sasl_plaintext", sasl_mechanism="plain", sasl_username="u", sasl_password="p")
    assert (settings.security_protocol, settings.sasl_mechanism) == ("SASL_PLAINTEXT", "PLAIN")


def test_secrets_are_in_no_text_and_reach_aiokafka() -> None:
    settings = make(**SCRAM, sasl_username="u", sasl_password=HIDDEN)
    cluster = KafkaCluster.of(settings)
    texts = [repr(settings), str(settings), settings.model_dump_json(), repr(cluster)]
    assert not any(HIDDEN in text for text in texts)
    assert cluster.arguments["sasl_plain_password"] == HIDDEN
    client = Client(model="m", **dict(settings))  # as `penstock embed` makes it
    assert HIDDEN not in repr(client)


def test_the_command_line_prints_no_secret() -> None:
    done = CliRunner().invoke(app, ["worker", "--model", "null", "--sasl-password", HIDDEN], env={"COLUMNS": "200"})
    assert (done.exit_code, HIDDEN in done.output) == (2, False)
    assert "Error: sasl_password: no effect with security_protocol PLAINTEXT." in " ".join(done.output.split())


class Provider(HTTPServer):
    """An identity provider that answers with its tokens in turn, and with the status when there are no more."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.tokens = ["first", "second"]
        self.status = 401


class Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        provider: Any = self.server
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        provider.asked.append((self.headers["Authorization"], form))
        answer = {"access_token": provider.tokens.pop(0), "expires_in": 100} if provider.tokens else {}
        self.send_response(200 if answer else provider.status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def source(url: str, clock: Callable[[], float] = time.monotonic) -> TokenSource:
    return TokenSource(url, client_id="me", client_secret=HIDDEN, scope="kafka", clock=clock)


async def test_client_credentials_are_exchanged_for_a_token_which_is_renewed_in_time(provider: Provider) -> None:
    now = 0.0
    tokens = source(f"http://127.0.0.1:{provider.server_port}/token", lambda: now)
    assert [await tokens.token(), await tokens.token()] == ["first", "first"]
    now += 79
    assert await tokens.token() == "first"
    now += 2
    assert await tokens.token() == "second"
    (authorization, form), _ = provider.asked
    assert authorization == "Basic bWU6aHVudGVyMi1oaWRkZW4="
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}


async def test_only_a_providers_clear_refusal_is_final(provider: Provider) -> None:
    url = f"http://127.0.0.1:{provider.server_port}/token"
    provider.tokens = []
    with pytest.raises(AuthenticationFailedError, match=r"sasl_oauthbearer_token_endpoint_url: .* answers 401"):
        await source(url).token()
    provider.status = 503
    with pytest.raises(OSError, match="503"):
        await source(url).token()
    provider.status = 200
    with pytest.raises(AuthenticationFailedError, match="gives no access_token"):
        await source(url).token()


async def test_a_token_file_is_read_for_each_connection(tmp_path: Path) -> None:
    path = tmp_path / "a token"
    tokens = source(path.as_uri())
    with pytest.raises(AuthenticationFailedError, match="no token could be read"):
        await tokens.token()
    for token in ("one", "two"):
        path.write_text(f"{token}\n")
        assert await tokens.token() == token
