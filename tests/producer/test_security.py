"""Settings of SASL and TLS: wrong combinations are refused by name, secrets stay hidden, tokens are renewed."""

from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from penstock.ops.cli.main import app
from penstock.producer import Client, InvalidRequest
from penstock.producer.settings import KafkaSettings
from penstock.producer.transport.cluster import KafkaCluster

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
        (OAUTH, "_token_file, .*_token_command, .*_token_endpoint_url: give one of them with .* OAUTHBEARER"),
        (
            {**OAUTH, "sasl_oauthbearer_token_file": "t", "sasl_oauthbearer_token_command": "print-token"},
            "_token_file, .*_token_command, .*_token_endpoint_url: give one of them with .* OAUTHBEARER",
        ),
        (
            {**OAUTH, "sasl_oauthbearer_token_endpoint_url": "https://idp/token"},
            "sasl_oauthbearer_client_id, sasl_oauthbearer_client_secret: needed with sasl_mechanism OAUTHBEARER",
        ),
        ({**OAUTH, "sasl_oauthbearer_token_command": " "}, "token_command\n.*must be a program and its arguments"),
        ({**OAUTH, "sasl_oauthbearer_token_command": "echo 'x"}, "token_command\n.*No closing quotation"),
        ({"sasl_oauthbearer_token_file": "t"}, "sasl_oauthbearer_token_file: no effect with security_protocol PLAIN"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM", "sasl_aws_region": "../x"},
            "sasl_aws_region\n",
        ),
        (
            {**OAUTH, "sasl_oauthbearer_token_endpoint_url": "idp/token"},
            "sasl_oauthbearer_token_endpoint_url\n.*must begin with https: or http:",
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


def test_a_query_of_the_token_endpoint_is_in_no_text() -> None:
    url = f"https://idp/token?client_secret={HIDDEN}"
    client = {"sasl_oauthbearer_client_id": "id", "sasl_oauthbearer_client_secret": HIDDEN}
    settings = make(**OAUTH, **client, sasl_oauthbearer_token_endpoint_url=url)
    assert not any(HIDDEN in text for text in (repr(settings), str(settings), settings.model_dump_json()))
    assert settings.sasl_oauthbearer_token_endpoint_url is not None
    assert settings.sasl_oauthbearer_token_endpoint_url.get_secret_value() == url


def test_the_command_line_prints_no_secret() -> None:
    done = CliRunner().invoke(app, ["worker", "--model", "null", "--sasl-password", HIDDEN], env={"COLUMNS": "200"})
    assert (done.exit_code, HIDDEN in done.output) == (2, False)
    assert "Error: sasl_password: no effect with security_protocol PLAINTEXT." in " ".join(done.output.split())
