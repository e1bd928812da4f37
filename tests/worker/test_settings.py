"""The worker's settings: given, from the environment, or resolved for an engine; never ignored or replaced."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from penstock.engine import ModelInfo, NullEngine, PackedBatch
from penstock.engine.errors import UnsupportedDevice
from penstock.engine.types import Running
from penstock.producer.settings import KafkaSettings
from penstock.worker import WorkerSettings, process
from penstock.worker.resolved_settings import resolve, scheduler_settings
from penstock.worker.routes.registry_settings import RegistrySettings
from penstock.worker.supervision.member_starter import member_settings

CPU = NullEngine(name="tiny").info
GPU = replace(CPU, device="NVIDIA H200", dtype="float16")


def make(**fields: Any) -> WorkerSettings:
    return WorkerSettings(**fields)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_MODEL", "some/model")
    monkeypatch.setenv("PENSTOCK_MAX_WAIT_MS", "7.5")
    monkeypatch.setenv("PENSTOCK_ONCE", "true")
    settings = make()
    assert (settings.model, settings.max_wait_ms, settings.once) == ("some/model", 7.5, True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_wait_ms": -1},
        {"max_wait_ms": math.inf},
        {"max_wait_ms": math.nan},
        {"slo_ms": 0},
        {"slo_ms": math.inf},
        {"slo_ms": math.nan},
        {"lanes": 0},
        {"lanes": 1025},
        {"max_batch_tokens": 10**23},
        {"max_sequences": 5000},
        {"trigger": "eager"},
        {"partition": "best"},
        {"order": "random"},
        {"admission": "all"},
        {"bulk_slice_ms": 0},
        {"bulk_slice_ms": math.inf},
        {"bulk_slice_ms": math.nan},
        {"dtype": "float8"},
        {"drain_s": 0},
        {"drain_s": math.inf},
        {"drain_s": 3_000_000},  # milliseconds beyond Kafka's int32
        {"fetch_max_wait_ms": 10**11},
        {"group_id": ""},
        {"bootstrap_servers": "user:password@host:9092"},  # the logs name the addresses
        {"max_batch_size": 4},
        {"reply_topics": "("},
        {"reply_topics": "a" * 10_001},
        {"topic": "a b"},
        {"topic": "t" * 240},  # no room for the dead letters of its bulk topic
        {"served_name": ""},
        {"served_name": "org/model"},
        {"served_name": "n" * 215},
    ],
)
def test_a_wrong_setting_is_rejected_and_never_replaced(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        make(model="m", **wrong)


def test_every_setting_says_what_it_is_for() -> None:
    assert [name for name, field in WorkerSettings.model_fields.items() if not field.description] == []


def test_the_scheduler_counts_in_seconds() -> None:
    chosen = make(model="m", max_wait_ms=2, slo_ms=100, max_batch_tokens=512, bulk_slice_ms=3, lanes=2)
    settings = scheduler_settings(resolve(chosen, CPU))
    assert (settings.max_wait_s, settings.slo_s, settings.bulk_slice_s) == (0.002, 0.1, 0.003)
    assert (settings.max_batch_tokens, settings.num_lanes) == (512, 2)


def test_without_an_objective_the_scheduler_knows_no_deadline() -> None:
    assert scheduler_settings(resolve(make(model="m"), CPU)).slo_s is None


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("partition", get_args(WorkerSettings.model_fields["partition"].annotation))
def test_the_partition_is_the_schedulers_to_choose_unless_given(partition: str, padded: bool) -> None:
    info = replace(CPU, padded=padded)
    assert scheduler_settings(resolve(make(model="m"), info)).partition == "auto"
    assert scheduler_settings(resolve(make(model="m", partition=partition), info)).partition == partition


def test_reading_settings_loads_no_model_library() -> None:
    code = "import sys; import penstock.worker; sys.exit('torch' in sys.modules or 'aiokafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("info", "given", "expected"),
    [
        (CPU, {}, (1024, 256)),
        (GPU, {}, (16_384, 1024)),
        (GPU, {"max_batch_sequences": 7}, (16_384, 7)),
        (GPU, {"max_batch_tokens": 1024, "max_batch_sequences": 256}, (1024, 256)),
    ],
)
def test_batch_caps_follow_the_device_unless_given(
    info: ModelInfo, given: dict[str, int], expected: tuple[int, int]
) -> None:
    settings = resolve(make(model="m", **given), info)
    assert (settings.max_batch_tokens, settings.max_batch_sequences) == expected


def test_lanes_follow_the_device_unless_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 5})
    assert resolve(make(model="m"), CPU).lanes == 3
    assert resolve(make(model="m"), GPU).lanes == 1
    assert resolve(make(model="m", lanes=2), GPU).lanes == 2


def test_no_batch_waits_for_company_unless_told() -> None:
    assert resolve(make(model="m"), CPU).max_wait_ms == 0.0
    assert resolve(make(model="m"), GPU).max_wait_ms == 0.0
    assert resolve(make(model="m", max_wait_ms=1), GPU).max_wait_ms == 1.0


def test_a_model_that_generates_has_one_lane_of_all_cores() -> None:
    generating = replace(CPU, tasks=frozenset({"generate"}))
    assert resolve(make(model="m"), generating).lanes == 1
    assert resolve(make(model="m"), CPU).lanes >= 1


def test_names_follow_the_model_unless_given() -> None:
    settings = resolve(make(model="m"), CPU)
    assert settings.served_name == "tiny"
    assert (settings.topic, settings.group_id) == ("penstock.requests.tiny", "penstock.tiny")
    for name in ("t", "auto"):
        settings = resolve(make(model="m", topic=name, group_id=name), CPU)
        assert (settings.topic, settings.group_id) == (name, name)


def test_more_lanes_than_an_engine_runs_are_an_error_that_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipelined(NullEngine):
        def start(self, batch: PackedBatch) -> Running:
            raise AssertionError("nothing is started")

        def idle(self) -> float | None:
            return None

    monkeypatch.setattr(process, "NullEngine", Pipelined)
    monkeypatch.setattr(process, "configure_logs", lambda *_: None)
    monkeypatch.setattr("sys.setswitchinterval", lambda _: None)
    with pytest.raises(UnsupportedDevice, match=r"--lanes: .* runs one lane\. Given: 2"):
        process.run_worker(make(model="null", lanes=2))


@pytest.mark.parametrize("worker", [None, 0, 1])
def test_the_settings_of_all_members_are_logged_by_the_first(
    monkeypatch: pytest.MonkeyPatch, worker: int | None
) -> None:
    def warm(*_: object) -> None:
        raise InterruptedError  # they are logged before that

    for name in ("configure_logs", "label_logs"):
        monkeypatch.setattr(process, name, lambda *_, **__: None)
    monkeypatch.setattr("sys.setswitchinterval", lambda _: None)
    monkeypatch.setattr(process, "_warm", warm)
    supervisor: Any = None if worker is None else SimpleNamespace(worker=worker, processes=2, is_beside=False)
    logged: list[str] = []
    monkeypatch.setattr(process, "log", SimpleNamespace(info=lambda event, **_: logged.append(event)))
    with pytest.raises(InterruptedError):
        process.run_worker(make(model="null"), supervisor)
    assert logged == ([] if worker else ["worker_starting", "settings_resolved"])


def test_every_resolved_setting_has_one_reason() -> None:
    settings = resolve(make(model="m", device="cuda", dtype="auto", lanes=2), GPU)
    reasons = settings.reasons
    assert sorted(name for names in reasons.values() for name in names) == sorted(WorkerSettings.model_fields)
    assert reasons["given"] == ["device", "lanes", "model"]
    assert reasons["default for cuda"] == ["max_batch_sequences", "max_batch_tokens", "max_wait_ms"]
    assert reasons["default for model tiny"] == ["group_id", "served_name", "topic"]
    assert reasons["found for this model and machine"] == ["dtype", "engine"]
    assert "trigger" in reasons["default"]


def test_the_reason_of_a_setting_that_is_no_default_is_its_origin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('[kafka]\nfetch_max_wait_ms = 7\n[worker]\nmodel = "of the file"\nlanes = 3\norder = "arrival"\n')
    monkeypatch.setenv("PENSTOCK_LANES", "2")
    settings = resolve(make(model="m", config=file), CPU)
    assert (settings.model, settings.lanes, settings.order, settings.fetch_max_wait_ms) == ("m", 2, "arrival", 7)
    assert settings.reasons["given"] == ["config", "model"]
    assert settings.reasons["environment"] == ["lanes"]
    assert settings.reasons[f"file {file}"] == ["fetch_max_wait_ms", "order"]


def test_a_member_has_the_settings_and_origins_of_its_supervisor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also one that starts after the file was changed."""
    file = tmp_path / "penstock.toml"
    file.write_text(
        '[kafka]\nsecurity_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\nsasl_username = "u"\n'
        'sasl_password = "hidden"\n[worker]\nmodel = "m"\nonce = true\nmetrics_port = 9100\n'
    )
    monkeypatch.setenv("PENSTOCK_CONFIG", str(file))
    settings = make(lanes=2)
    handed = json.loads(json.dumps(member_settings(settings)))
    file.write_text("[worker]\nlanes = 9\nmax_wait_ms = 1\n")
    member = WorkerSettings.handed_over(**handed)
    own = {"config": None, "metrics_port": 0}
    assert dict(member) == {**dict(settings), **own}
    assert member.sasl_password is not None
    assert member.sasl_password.get_secret_value() == "hidden"
    assert {name: member.origins[name] for name in settings.origins} == dict(settings.origins)
    assert (member.origins["once"], member.origins["metrics_host"]) == (f"file {file}", "supervisor")
    assert "hidden" not in str(member.model_dump(mode="json")) + repr(member)


def test_a_member_has_the_whole_token_endpoint() -> None:
    url = "https://idp/token?client_secret=hidden"
    credentials = {"sasl_oauthbearer_client_id": "id", "sasl_oauthbearer_client_secret": "hidden"}
    oauth = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", **credentials}
    settings = make(model="m", sasl_oauthbearer_token_endpoint_url=url, **oauth)
    member = WorkerSettings.handed_over(**json.loads(json.dumps(member_settings(settings))))
    assert member.sasl_oauthbearer_token_endpoint_url is not None
    assert member.sasl_oauthbearer_token_endpoint_url.get_secret_value() == url
    assert "hidden" not in str(member.model_dump(mode="json")) + repr(member)


def test_a_resolved_setting_is_never_open() -> None:
    settings = resolve(make(model="m"), GPU)
    # The supervisor decides `mps`, and may decide otherwise after a fault; the command decides `standby`.
    may_be_open = {
        "config",
        "head",
        "int8_ranges",
        "slo_ms",
        "cache_path",
        "metrics_port",
        "log_format",
        "partition",
        "mps",
        "standby",
        "connect_timeout_s",  # none: a worker goes on trying
    }
    may_be_open |= {"input_topic", "output_topic", "text", "task", "query", "max_age_ms"}  # of routes
    may_be_open |= {"chunk_tokens", "revision_field", "output_format"}
    may_be_open |= {"log_file", "cells", "state_slots", "page_memory_mib"}  # of models that run step by step
    open_settings = {name for name, value in settings if value in (None, "auto")}
    assert resolve(make(model="m", dtype="auto-int8"), GPU).dtype == GPU.dtype
    security = {name for name in KafkaSettings.model_fields if name.startswith(("sasl_", "ssl_"))}
    security |= {name for name in RegistrySettings.model_fields if name.startswith("schema_registry_")}
    assert open_settings <= may_be_open | security
