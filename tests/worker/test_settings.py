"""The worker's settings: every one from the environment, none silently ignored or defaulted."""

import math
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.engine import NullEngine
from penstock.worker import WorkerSettings
from penstock.worker.process import suited
from penstock.worker.settings import scheduler_settings


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
        {"max_batch_size": 4},
        {"reply_topics": "("},
        {"topic": "a b"},
        {"topic": "t" * 240},  # no room for the dead letters of its bulk topic
        {"served_name": ""},
        {"served_name": "org/model"},
        {"served_name": "n" * 215},
    ],
)
def test_a_wrong_setting_is_refused_and_never_replaced(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        make(model="m", **wrong)


def test_every_setting_says_what_it_is_for() -> None:
    assert [name for name, field in WorkerSettings.model_fields.items() if not field.description] == []


def test_the_scheduler_counts_in_seconds() -> None:
    chosen = make(model="m", max_wait_ms=2, slo_ms=100, max_batch_tokens=512, bulk_slice_ms=3)
    settings = scheduler_settings(chosen, num_lanes=2, padded=False)
    assert (settings.max_wait_s, settings.slo_s, settings.bulk_slice_s) == (0.002, 0.1, 0.003)
    assert (settings.max_batch_tokens, settings.num_lanes) == (512, 2)


def test_nothing_is_refused_for_lateness_unless_somebody_sets_a_deadline() -> None:
    assert scheduler_settings(make(model="m"), num_lanes=1, padded=False).slo_s is None


@pytest.mark.parametrize(
    ("padded", "chosen", "expected"), [(False, None, "fifo"), (True, None, "dp"), (True, "fifo", "fifo")]
)
def test_the_partition_is_what_is_right_for_the_engine_unless_chosen(
    padded: bool, chosen: str | None, expected: str
) -> None:
    settings = scheduler_settings(make(model="m", partition=chosen), num_lanes=1, padded=padded)
    assert settings.partition == expected


def test_reading_settings_loads_no_model_library() -> None:
    code = "import sys; import penstock.worker; sys.exit('torch' in sys.modules or 'aiokafka' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class NullGpu(NullEngine):
    """As a GPU's engine looks from outside."""

    def __init__(self) -> None:
        super().__init__()
        self._info = replace(self._info, device="NVIDIA H200")


def test_caps_that_nobody_chose_are_a_gpus_on_a_gpu() -> None:
    on_cpu = suited(make(model="m"), NullEngine())
    assert (on_cpu.max_batch_tokens, on_cpu.max_batch_sequences) == (1024, 256)
    on_gpu = suited(make(model="m", max_batch_sequences=7), NullGpu())
    assert (on_gpu.max_batch_tokens, on_gpu.max_batch_sequences) == (16_384, 7)
