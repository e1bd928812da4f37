"""`penstock config`: what is in force and why; its output is a configuration file."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.ops.cli.command_settings import settings_by_command
from penstock.ops.cli.development.broker import BrokerSettings
from penstock.ops.cli.jobs.task_commands import ClassifySettings, GenerateSettings
from penstock.ops.cli.main import app
from penstock.ops.cli.planning.capacity import CapacitySettings
from penstock.ops.cli.terminal import EXIT_USAGE
from penstock.producer.settings import ClientSettings
from penstock.producer.settings_sources import Settings
from penstock.worker.settings import WorkerSettings
from tests.ops.command_line import penstock

FILE = """\
[kafka]
security_protocol = "SASL_SSL"
sasl_mechanism = "PLAIN"
sasl_username = "u"
sasl_password = "of the file"

[worker]
model = "checkpoints/intents"
max_wait_ms = 3
once = true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "penstock.toml"
    path.write_text(FILE)
    return path


def worker(**given: Any) -> WorkerSettings:
    return WorkerSettings(**given)


def output(*args: str, env: dict[str, str] | None = None) -> str:
    result = CliRunner().invoke(app, ["config", *args], prog_name="penstock", env=env)
    assert result.exit_code == 0, result.output
    return result.output


def test_each_value_has_its_origin(file: Path) -> None:
    printed = output("worker", "--config", str(file), "--max-wait-ms", "7", env={"PENSTOCK_ORDER": "arrival"})
    lines = printed.splitlines()
    assert "max_wait_ms = 7.0  # given" in lines
    assert 'order = "arrival"  # environment' in lines
    assert f"once = true  # file {file}" in lines
    assert 'trigger = "lazy"  # default' in lines
    assert "# lanes is not set (decided when the model is loaded)" in lines
    assert f"# sasl_password is a secret (file {file})" in lines
    assert "of the file" not in printed


def test_the_output_is_a_file_of_the_same_settings(file: Path, tmp_path: Path) -> None:
    before = worker(config=file, lanes=2, cache_path=tmp_path / 'a "quoted" name')
    printed = output("worker", "--config", str(file), "--lanes", "2", "--cache-path", str(before.cache_path))
    again = tmp_path / "again.toml"
    again.write_text(printed)
    assert tomllib.loads(printed)["worker"]["lanes"] == 2
    after = worker(config=again, sasl_password="of the file")
    assert dict(after) == {**dict(before), "config": again}


def test_programs_get_json_without_secrets(file: Path) -> None:
    printed = output("worker", "--config", str(file), "--format", "json")
    tables = json.loads(printed)
    assert tables["worker"]["max_wait_ms"] == {"value": 3.0, "origin": f"file {file}"}
    assert tables["kafka"]["sasl_password"]["value"] == "**********"
    assert "of the file" not in printed
    assert tables.pop("routes") == []
    names = {name for table in tables.values() for name in table}
    assert names == WorkerSettings.model_fields.keys() - {"config", "routes"}


def test_routes_are_printed_as_a_file_has_them(tmp_path: Path) -> None:
    tables: list[dict[str, Any]] = [
        {"input_topic": "a", "output_topic": "b", "text": "{x}\n{y}", "request_options": {"labels": ["p", "q"]}},
        {"input_topic": "c", "output_topic": "d", "text": "/x", "max_age_ms": 5.0, "route_class": "bulk"},
    ]
    lines = ["[worker]", 'model = "null"', 'group_id = "g"']
    for table in tables:
        lines += ["[[routes]]", *[f"{key} = {json.dumps(value)}" for key, value in table.items() if value != {}]]
    file = tmp_path / "penstock.toml"
    file.write_text("\n".join(lines).replace('{"labels": ["p", "q"]}', '{labels = ["p", "q"]}'))
    assert tomllib.loads(output("worker", "--config", str(file)))["routes"] == tables
    with_one = output("worker", "--model", "null", "--input-topic", "a", "--output-topic", "b", "--text", "x")
    assert tomllib.loads(with_one)["worker"]["input_topic"] == "a"


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("PENSTOCK_ROUTES", '[{"input_topic"', "--routes (or PENSTOCK_ROUTES): must be JSON"),
        ("PENSTOCK_ROUTES", "3", "--routes (or PENSTOCK_ROUTES): Input should be a valid tuple"),
        (
            "PENSTOCK_ROUTES",
            '[{"input_topic": "a", "text": "x"}]',
            "[[routes]], number 1: output_topic: Field required",
        ),
        ("PENSTOCK_REQUEST_OPTIONS", "{", "--request-options (or PENSTOCK_REQUEST_OPTIONS): must be JSON"),
        ("PENSTOCK_REQUEST_OPTIONS", "[" * 100_000, "must be JSON"),
    ],
)
def test_routes_of_the_environment_are_json(name: str, value: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    code, text = penstock("config", "worker", "--model", "null")
    assert code == EXIT_USAGE
    assert fault in text


def test_a_client_has_its_own_settings() -> None:
    tables = json.loads(output("client", "--model", "m", "--format", "json"))
    assert {name for table in tables.values() for name in table} == ClientSettings.model_fields.keys() - {"config"}
    assert tables["client"]["model"] == {"value": "m", "origin": "given"}


@pytest.mark.parametrize("key", ["max_wait_ms", "PENSTOCK_MAX_WAIT_MS", "--max-wait-ms"])
def test_a_setting_is_explained_by_any_of_its_names(key: str) -> None:
    lines = output(f"--explain={key}").splitlines()
    assert lines[0] == "max_wait_ms"
    assert lines[1].strip() == WorkerSettings.model_fields["max_wait_ms"].description
    assert [line.split(maxsplit=1) for line in lines[3:]] == [
        ["type", "number, at least 0"],
        ["default", "decided when the model is loaded"],
        ["option", "--max-wait-ms"],
        ["variable", "PENSTOCK_MAX_WAIT_MS"],
        ["file", "max_wait_ms in [worker]"],
        ["decided", "by the option, else the variable, else the file, else the default"],
    ]


def test_a_setting_that_differs_between_worker_and_client_is_explained_for_both() -> None:
    printed = output("--explain", "max_in_flight")
    assert "max_in_flight of a worker" in printed
    assert "max_in_flight of a client" in printed
    assert output("--explain", "bootstrap_servers").count("type") == 1


def test_the_settings_of_jobs_and_of_capacity_are_explained() -> None:
    lines = output("--explain", "column").splitlines()
    assert lines[0] == "column of classify, embed, generate"
    assert "column of parity" in lines
    assert not [line for line in lines if line.startswith("  file")]
    assert lines[-1] == "  decided   by the option, else the variable, else the default"
    timeouts = output("--explain", "timeout_s")
    assert timeouts.startswith("timeout_s of a client\n")
    assert "timeout_s of classify, embed, generate, rerank\n" in timeouts
    assert "  default   3600.0\n" in timeouts
    assert "top_k of generate" in output("--explain", "top_k")
    assert output("--explain", "rate").startswith("rate\n  Sequences a second")


def test_the_settings_of_every_command_are_explained() -> None:
    lines = output("--explain", "PENSTOCK_KIND").splitlines()
    assert lines[:2] == ["kind", f"  {BrokerSettings.model_fields['kind'].description}"]
    assert "  variable  PENSTOCK_KIND" in lines
    assert "model of check\n" in output("--explain", "model")
    commands = settings_by_command()
    assert {"broker", "calibrate", "capacity", "dlq answer", "parity", "rerank", "worker"} <= commands.keys()
    own = {name: str(field.description) for name, field in commands["parity"].model_fields.items()}
    for name, description in own.items():
        assert description in output("--explain", name)


def test_a_variable_that_is_no_setting_is_refused() -> None:
    runner = CliRunner()
    environment = {"PENSTOCK_MAX_WAIT_MSS": "2", "PENSTOCK_RATE": "5", "PENSTOCK_MAX_WAIT_MS": "3"}
    result = runner.invoke(app, ["config", "worker", "--model", "m"], prog_name="penstock", env=environment)
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: The environment variable PENSTOCK_MAX_WAIT_MSS is no setting. Did you mean PENSTOCK_MAX_WAIT_MS?\n"
    )


def test_what_kubernetes_sets_for_a_service_is_no_setting() -> None:
    environment = {
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT_METRICS": "9100",
        "PENSTOCK_PORT": "tcp://10.0.0.1:9100",
        "PENSTOCK_WORKER_PORT_9100_TCP_ADDR": "10.0.0.1",
    }
    assert "max_wait_ms" in output("worker", "--model", "m", env=environment)


@pytest.mark.parametrize(
    "settings", [WorkerSettings, ClientSettings, ClassifySettings, GenerateSettings, CapacitySettings]
)
def test_every_setting_can_be_explained(settings: type[Settings]) -> None:
    for name in settings.model_fields:
        assert f"--{name.replace('_', '-')}" in output("--explain", name)


def test_an_unknown_setting_has_a_nearest_one() -> None:
    assert penstock("config", "--explain", "max_wait") == (
        2,
        "Error: max_wait is no setting. Did you mean max_wait_ms?",
    )


def test_a_fault_of_the_file_names_its_line(file: Path) -> None:
    file.write_text('[worker]\nmodel = "m"\nlanes = 0\n')
    code, text = penstock("config", "worker", "--config", str(file))
    assert code == 2
    assert f"{file}, line 3: [worker] lanes: Input should be greater than or equal to 1. Given: 0" in text
    file.write_text('[worker]\nmodel = "m"\nlane = 1\n')
    code, text = penstock("worker", "--config", str(file))
    assert (code, text) == (2, f"Error: {file}, line 3: lane is no setting of [worker]. Did you mean lanes?")


def test_a_secret_of_the_wrong_type_is_not_shown(file: Path) -> None:
    file.write_text(FILE.replace('"of the file"', "12345"))
    code, text = penstock("config", "worker", "--config", str(file))
    assert code == 2
    assert "[kafka] sasl_password: Input should be a valid string. Given: a secret" in text
    assert "12345" not in text


TOKEN_URL = "sasl_oauthbearer_token_endpoint_url"
OAUTH = {
    "PENSTOCK_SECURITY_PROTOCOL": "SASL_SSL",
    "PENSTOCK_SASL_MECHANISM": "OAUTHBEARER",
    "PENSTOCK_SASL_OAUTHBEARER_CLIENT_ID": "id",
    "PENSTOCK_SASL_OAUTHBEARER_CLIENT_SECRET": "of the client",
}


@pytest.mark.parametrize("command", [["worker"], ["embed", "--text", "x"], ["config", "client"]])
@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        (TOKEN_URL, "https://user:hunter2@idp/token", "https://***@idp/token"),
        (TOKEN_URL, "https://user:hun/ter2@idp/token?secret=hunter2", "https://***@idp/token?***"),
        (TOKEN_URL, "idp/token?client_secret=hunter2", "idp/token?***"),
        (TOKEN_URL, "https://user:hunter2\u2100@idp/token", "https://***@idp/token"),
        ("bootstrap_servers", "user:hunter2@localhost:9092", "***@localhost:9092"),
        ("bootstrap_servers", "a:1,user:hun,ter2@localhost:9092", "***@localhost:9092"),
    ],
)
def test_an_address_that_is_refused_is_shown_without_its_secrets(
    command: list[str], name: str, given: str, shown: str, file: Path
) -> None:
    for env, options in (({f"PENSTOCK_{name.upper()}": given}, []), ({}, ["--config", str(file)])):
        file.write_text(f'[kafka]\n{name} = "{given}"\n')
        code, text = penstock(*command, "--model", "m", *options, env=env)
        assert (code, "hun" in text, "ter2" in text) == (2, False, False), text
        assert f"Given: '{shown}'" in text


@pytest.mark.parametrize("form", ["toml", "json"])
def test_the_query_of_a_url_is_not_printed(form: str) -> None:
    env = {**OAUTH, "PENSTOCK_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": "https://idp/token?client_secret=hunter2"}
    printed = output("worker", "--model", "m", "--format", form, env=env)
    assert "hunter2" not in printed
    assert "https://idp/token?***" in printed
    if form == "toml":
        assert TOKEN_URL not in tomllib.loads(printed)["kafka"]


def test_a_url_without_secrets_is_printed_as_it_is() -> None:
    env = {**OAUTH, "PENSTOCK_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": "https://idp/token"}
    assert tomllib.loads(output("worker", "--model", "m", env=env))["kafka"][TOKEN_URL] == "https://idp/token"


def test_the_page_has_the_errors_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting that was added since had become nearer to the page's misspelled key than the one that is meant."""
    page = (Path(__file__).parents[2] / "ops" / "docs" / "configuration.md").read_text(encoding="utf-8")
    file = page.partition("```toml\n")[2].partition("```")[0]
    errors = re.findall(r"^Error: (.*)$", page, re.MULTILINE)
    (key,) = re.findall(r"(\w+) is no setting of", errors[0])
    monkeypatch.chdir(tmp_path)
    Path("penstock.toml").write_text(file.replace("cache_path", key))
    assert penstock("worker", "--config", "penstock.toml") == (EXIT_USAGE, f"Error: {errors[0]}")
    monkeypatch.setenv("PENSTOCK_MAX_WAIT_MSS", "2")
    assert penstock("worker", "--model", "m") == (EXIT_USAGE, f"Error: {errors[1]}")
