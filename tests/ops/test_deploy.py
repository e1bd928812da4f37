"""The files of ops/deploy name settings, metrics and paths that exist, and agree with the worker's own times."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from penstock.ops.cli.main import app
from penstock.ops.cli.setting_options import option_name
from penstock.producer.settings import ClientSettings
from penstock.producer.settings_sources import FileSettings, env_name
from penstock.worker.process import EXIT_S
from penstock.worker.routes.settings import RouteFields
from penstock.worker.settings import WorkerSettings

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "ops" / "deploy"
CHART = DEPLOY / "helm" / "penstock"
FILES = sorted(
    path
    for folder in ("docker", "compose", "helm", "systemd")
    for path in (DEPLOY / folder).rglob("*")
    if path.is_file() and path.suffix != ".json"
)
TEXTS = {path.relative_to(DEPLOY).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
SETTINGS = WorkerSettings.model_fields.keys() | ClientSettings.model_fields.keys()


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TEXTS)
def test_every_variable_is_a_setting(name: str) -> None:
    known = {env_name(field) for field in SETTINGS}
    assert set(re.findall(r"PENSTOCK_[A-Z_]+[A-Z]", TEXTS[name])) <= known


@pytest.mark.parametrize("name", TEXTS)
def test_every_option_of_a_command_exists(name: str) -> None:
    """As on lines that begin a command, `penstock worker --config …`, and in lists of arguments."""
    text = re.sub(r"(args|command): \[worker, ", "penstock worker ", TEXTS[name])
    for command, rest in re.findall(r"(?:/|\b)penstock (worker|embed|check|config)\b([^\n`;#]*)", text):
        shown = " ".join(CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "300"}).output.split())
        for option in re.findall(r"--[a-z][a-z-]+", rest):
            assert f"{option} " in shown, (command, option)


def test_every_metric_is_in_the_code() -> None:
    named = {metric for text in TEXTS.values() for metric in re.findall(r"\bpenstock_[a-z_]+", text)}
    assert named
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "worker").rglob("*.py"))
    assert [metric for metric in named if f'"{metric}"' not in code] == []


def test_every_probe_is_served() -> None:
    named = {path for text in TEXTS.values() for path in re.findall(r"/(?:readyz|livez|ready|live|healthz?)\b", text)}
    assert named == {"/readyz", "/livez"}


@pytest.mark.parametrize("name", [name for name in TEXTS if name.endswith(("values.yaml", "Chart.yaml"))])
def test_the_files_of_the_chart_parse(name: str) -> None:
    assert load(DEPLOY / name)


def test_the_defaults_of_the_chart_are_settings_of_a_worker(tmp_path: Path) -> None:
    """As the chart writes them: numbers of YAML are floats in its TOML."""
    config = load(CHART / "values.yaml")["config"]
    file = tmp_path / "penstock.toml"
    lines = []
    for table, values in config.items():
        lines.append(f"[{table}]")
        numbers = {key: float(value) if isinstance(value, int) else value for key, value in values.items()}
        lines += [f"{key} = {json.dumps(value)}" for key, value in numbers.items()]
    file.write_text("\n".join(lines))
    settings = WorkerSettings.model_validate({"config": file})
    assert tomllib.loads(file.read_text())["worker"]["partitions"] == settings.partitions == 60
    assert settings.drain_s == config["worker"]["drain_s"]


def test_a_stop_has_time_for_the_drain_and_for_the_end_of_the_process() -> None:
    values = load(CHART / "values.yaml")
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert values["graceSeconds"] > EXIT_S
    assert schema["properties"]["graceSeconds"]["exclusiveMinimum"] >= EXIT_S
    assert (
        "add (ceil .Values.config.worker.drain_s) .Values.graceSeconds"
        in TEXTS["helm/penstock/templates/deployment.yaml"]
    )
    drain_s = WorkerSettings.model_fields["drain_s"].default
    services = load(DEPLOY / "compose" / "compose.yaml")["services"]
    for name in ("worker", "route"):
        assert int(services[name]["stop_grace_period"].removesuffix("s")) > drain_s + EXIT_S
    (stop_s,) = re.findall(r"TimeoutStopSec=(\d+)", TEXTS["systemd/penstock-worker.service"])
    assert int(stop_s) > drain_s + EXIT_S


def test_the_compose_file_mounts_files_that_exist() -> None:
    """Those of dashboards and rules are folders."""
    folder = DEPLOY / "compose"
    services = load(folder / "compose.yaml")["services"]
    assert {"kafka", "worker", "producer", "messages", "route", "prometheus", "jaeger", "grafana"} == services.keys()
    mounts = [mount.split(":")[0] for service in services.values() for mount in service.get("volumes", ())]
    paths = [folder / mount for mount in mounts if mount.startswith(".") and Path(mount).suffix]
    assert len(paths) == 4
    assert [path for path in paths if not path.is_file()] == []
    assert all(load(path) for path in paths if path.suffix == ".yaml")
    build = services["worker"]["build"]
    assert (folder / build["context"] / build["dockerfile"]).resolve() == (DEPLOY / "docker" / "Dockerfile.cpu")


def test_the_route_of_the_compose_file_reads_the_topic_of_its_messages_and_is_watched() -> None:
    folder = DEPLOY / "compose"
    services = load(folder / "compose.yaml")["services"]
    route = services["route"]
    [file] = [mount.split(":")[0] for mount in route["volumes"] if ".toml:" in mount]
    assert route["command"] == ["worker", "--config", route["volumes"][-1].split(":")[1]]
    settings = WorkerSettings.model_validate({"config": folder / file, "model": "m"})
    [enriching] = settings.all_routes
    [script] = services["messages"]["command"]
    assert re.findall(r"--topic (\S+)", script) == [enriching.input_topic]
    [value] = re.findall(r'echo "\$\$id\|(.+)"$', script, re.M)
    message = json.loads(value.replace('\\"', '"').replace("$$id", "7"))
    assert set(re.findall(r"{(\w+)}", str(enriching.text))) <= message.keys()
    assert f"--topic {enriching.output_topic} " in TEXTS["compose/compose.yaml"]
    [job] = load(folder / "prometheus.yaml")["scrape_configs"]
    [watched] = job["dns_sd_configs"]
    assert watched["names"] == ["worker", "route"]
    assert {services[name]["image"] for name in watched["names"]} == {"penstock:cpu"}


def test_the_schema_knows_every_value_and_the_chart_uses_it() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    templates = "\n".join(text for name, text in TEXTS.items() if "/templates/" in name)
    used = set(re.findall(r"\.Values\.(\w+)", templates))
    assert used == schema["properties"].keys() - {"global"}
    for table, kind in (("worker", WorkerSettings), ("kafka", WorkerSettings)):
        named = schema["properties"]["config"]["properties"][table]["properties"]
        settings: type[FileSettings] = kind
        assert named.keys() <= settings.model_fields.keys()


def test_the_members_of_all_pods_are_compared_with_the_partitions_with_autoscaling_and_without() -> None:
    """The output of `helm template` is not tested here: the manual has the run."""
    for name, value in (("deployment", "replicas"), ("scaledobject", "autoscaling.maxReplicas")):
        assert (
            f'"penstock.checkMembers" (dict "root" . "name" "{value}"' in TEXTS[f"helm/penstock/templates/{name}.yaml"]
        )


def test_the_schema_accepts_the_defaults_and_refuses_wrong_values() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft7Validator(schema)
    values = load(CHART / "values.yaml")
    assert list(validator.iter_errors(values)) == []
    for wrong in (
        {"replica": 2},
        {"graceSeconds": 10},
        {"membersPerPod": 0},
        {"networkPolicy": {**values["networkPolicy"], "otlpPorts": [0]}},
        {"config": {"kafka": {"bootstrap_servers": "k:1", "sasl_password": "p"}, "worker": values["config"]["worker"]}},
        {"config": {**values["config"], "client": {}}},
        {"config": {**values["config"], "routes": [{"input_topic": "orders"}]}},
        {"config": {**values["config"], "worker": {**values["config"]["worker"], "schema_registry_token": "t"}}},
        {"config": {**values["config"], "worker": {**values["config"]["worker"], "request_options": {"top_k": 3}}}},
    ):
        assert list(validator.iter_errors({**values, **wrong})), wrong


def test_the_chart_takes_the_routes_of_a_file_and_scales_by_the_topics_that_a_worker_reads() -> None:
    """The output of the templates is not tested here."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = load(CHART / "values.yaml")
    example = tomllib.loads((ROOT / "ops" / "examples" / "route" / "penstock.toml").read_text(encoding="utf-8"))
    config = {**values["config"], "routes": example["routes"]}
    assert list(jsonschema.Draft7Validator(schema).iter_errors({**values, "config": config})) == []
    route = schema["properties"]["config"]["properties"]["routes"]["items"]["properties"]
    assert route.keys() <= RouteFields.model_fields.keys()
    assert 'splitList "," (include "penstock.topics" .)' in TEXTS["helm/penstock/templates/scaledobject.yaml"]


@pytest.mark.parametrize("name", ["Dockerfile.cpu", "Dockerfile.cuda"])
def test_an_image_is_small_and_does_not_run_as_root(name: str) -> None:
    text = TEXTS[f"docker/{name}"]
    build, image = text.split("FROM ")[1:]
    assert "AS build" in build
    assert "PIP_NO_CACHE_DIR=1" in build
    [extras] = re.findall(r'"\.\[(.+)\]"', build)
    assert {"logs", "otel"} <= set(extras.split(","))  # as the manual says
    assert "pip install" not in image
    assert re.search(r"^USER 10001$", image, re.M)
    assert re.search(r"^HEALTHCHECK .*\\\n.*/livez", image, re.M)
    ignored = TEXTS[f"docker/{name}.dockerignore"].splitlines()
    for path in re.findall(r"!(\S+)", "\n".join(ignored)):
        assert (ROOT / path).exists()
    assert {f"!{room}" for room in ("producer", "worker", "engine", "scheduler", "cache", "ops")} <= set(ignored)


def test_the_options_of_the_documents_exist() -> None:
    page = (ROOT / "ops" / "docs" / "configuration.md").read_text(encoding="utf-8")
    for option in re.findall(r"penstock worker (--[a-z-]+)", page):
        assert option in {option_name(field) for field in SETTINGS}
