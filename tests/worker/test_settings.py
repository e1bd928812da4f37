"""The worker's settings: every one from the environment, none silently ignored or defaulted."""

import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.engine import NullEngine, PackedBatch
from penstock.engine.types import Running
from penstock.worker import WorkerSettings
from penstock.worker.process import suited
from penstock.worker.worker import scheduler_settings


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
        {"slo_ms": 0},
        {"lanes": 0},
        {"max_sequences": 5000},
        {"trigger": "eager"},
        {"dtype": "float8"},
        {"drain_s": 0},
        {"max_batch_size": 4},
    ],
)
def test_a_wrong_setting_is_refused_and_never_replaced(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        make(model="m", **wrong)


def test_every_setting_says_what_it_is_for() -> None:
    assert [name for name, field in WorkerSettings.model_fields.items() if not field.description] == []


def test_the_scheduler_counts_in_seconds() -> None:
    settings = scheduler_settings(make(model="m", max_wait_ms=2, slo_ms=100, max_batch_tokens=512))
    assert (settings.max_wait_s, settings.slo_s, settings.max_batch_tokens) == (0.002, 0.1, 512)


def test_reading_settings_loads_no_model_library() -> None:
    code = "import sys; import penstock.worker; sys.exit('torch' in sys.modules or 'aiokafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class PipelinedNull(NullEngine):
    """As a GPU's engine looks from outside."""

    def start(self, batch: PackedBatch) -> Running:
        raise NotImplementedError


def test_caps_that_nobody_chose_are_a_gpus_on_a_gpu() -> None:
    on_cpu = suited(make(model="m"), NullEngine())
    assert (on_cpu.max_batch_tokens, on_cpu.max_batch_sequences) == (1024, 256)
    on_gpu = suited(make(model="m", max_batch_sequences=7), PipelinedNull())
    assert (on_gpu.max_batch_tokens, on_gpu.max_batch_sequences) == (16_384, 7)
