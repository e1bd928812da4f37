"""The configuration file: below environment and arguments, and never half understood."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.producer.client import Client
from penstock.producer.errors import InvalidRequest
from penstock.producer.settings import ClientSettings, KafkaSettings
from penstock.producer.settings_sources import SettingsFileError

WHOLE = """\
# of one site
[kafka]
bootstrap_servers = "kafka:9092"
fetch_max_wait_ms = 9

[client]
model = "intents"
timeout_s = 5
batch_calls = false
"""


def client(**given: Any) -> ClientSettings:
    return ClientSettings(**given)


def kafka(**given: Any) -> KafkaSettings:
    return KafkaSettings(**given)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "penstock.toml"
    path.write_text(WHOLE)
    monkeypatch.setenv("PENSTOCK_CONFIG", str(path))
    return path


def test_a_file_is_below_the_environment_and_that_below_arguments(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_TIMEOUT_S", "6")
    monkeypatch.setenv("PENSTOCK_MODEL", "other")
    settings = client(model="given")
    assert (settings.model, settings.timeout_s, settings.batch_calls) == ("given", 6.0, False)
    assert settings.origins == {
        "bootstrap_servers": f"file {file}",
        "fetch_max_wait_ms": f"file {file}",
        "batch_calls": f"file {file}",
        "timeout_s": "environment",
        "config": "environment",
        "model": "given",
    }


def test_a_file_that_is_given_has_precedence_over_that_of_the_environment(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[client]\nmodel = "of the other"\n')
    settings = client(config=other)
    assert (settings.model, settings.timeout_s) == ("of the other", 30.0)
    assert client(config=None, model="m").timeout_s == 30.0


def test_a_class_reads_its_own_tables(file: Path) -> None:
    assert kafka().fetch_max_wait_ms == 9
    file.write_text("[kafka]\nfetch_max_wait_ms = 9\n[client]\nfetch_max_wait_ms = 8\nmodel = 'm'\n[worker]\nx = 1\n")
    assert (kafka().fetch_max_wait_ms, client().fetch_max_wait_ms) == (9, 8)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "[client]\nmodel = 'm'\ntimeout = 5\n",
            ", line 3: timeout is no setting of [client]. Did you mean timeout_s?",
        ),
        ("[client]\ntimeout-s = 5\n", ", line 2: timeout-s is no setting of [client]. Did you mean timeout_s?"),
        ("[kafka]\n\n'model' = 'm'\n", ", line 3: model is no setting of [kafka]. It belongs to [client]."),
        ("client = {zzz = 1}\n", ": zzz is no setting of [client]."),
        ("client.zzz = 1\n", ", line 1: zzz is no setting of [client]."),
        ("[client]\nconfig = 'b.toml'\n", ", line 2: config is no setting of [client]."),
        ("timeout_s = 5\n", ", line 1: timeout_s is outside of [kafka], [worker] and [client]."),
        (
            "\n[clients]\n",
            ", line 2: there is no table [clients]. Did you mean [client]? "
            "The tables are [kafka], [worker] and [client], and [[routes]].",
        ),
        ("[client\n", ": is not TOML: Expected ']' at the end of a table declaration (at line 1, column 8)."),
    ],
)
def test_what_is_no_setting_is_an_error_with_its_place(file: Path, text: str, fault: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsFileError) as caught:
        client(model="m")
    assert str(caught.value) == f"{file}{fault}"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsFileError, match=r"missing\.toml: No such file or directory\."):
        client(config=tmp_path / "missing.toml", model="m")
    deep = tmp_path / "deep.toml"
    deep.write_text(f"[client]\nmodel = {'[' * 5000}")
    with pytest.raises(SettingsFileError, match=r"deep\.toml: is not TOML: maximum recursion depth"):
        client(config=deep, model="m")
    latin = tmp_path / "latin.toml"
    latin.write_bytes("# é\n".encode("latin-1"))
    with pytest.raises(SettingsFileError, match=r"latin\.toml: is not UTF-8, at byte 2\."):
        client(config=latin, model="m")
    marked = tmp_path / "marked.toml"
    marked.write_text("[client]\ntimeout_s = 5\n", encoding="utf-8-sig")
    assert client(config=marked, model="m").timeout_s == 5


def test_a_value_of_another_type_is_an_error_and_is_not_replaced(file: Path) -> None:
    file.write_text("[client]\nmodel = 'm'\ntimeout_s = 'soon'\n")
    with pytest.raises(ValidationError, match="timeout_s"):
        client()
    assert ClientSettings.place_of("timeout_s", {}) == f"{file}, line 3: [client] timeout_s"
    assert ClientSettings.place_of("timeout_s", {"timeout_s": "soon"}) == ""


def test_a_client_reads_the_file_and_names_its_faults(file: Path) -> None:
    file.write_text("[client]\nmodell = 'm'\n")
    with pytest.raises(InvalidRequest, match=r"line 2: modell is no setting of \[client\]\. Did you mean model\?"):
        Client()
