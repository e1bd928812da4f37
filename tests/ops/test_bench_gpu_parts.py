"""Parts of the GPU benchmarks from end to end without a GPU: their models are stubs, and time is the host's."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from penstock.ops.bench.gpu.contestants.unpadded import UNPADDED
from penstock.ops.bench.gpu.gpu_tables import FLOOR, GPU, OURS
from penstock.ops.bench.gpu.parts import backlog, single


class Encoder:
    """Counts batches; computes nothing."""

    def __init__(self) -> None:
        self.num_runs = 0

    def run(self, batch: Any) -> torch.Tensor:
        self.num_runs += 1
        return torch.zeros(len(batch.token_ids), 4)

    def upload(self, batch: Any) -> Any:
        return batch

    def forward(self, batch: Any) -> torch.Tensor:
        return self.run(batch)

    def prepare(self, batch: Any, share: Any) -> bool:
        return True


class StubBench:
    """The `Bench` of a machine without a GPU. Plain torch has no device here, so packed torch fails."""

    def __init__(self) -> None:
        self.seed = 2026
        self.bert = SimpleNamespace(vocab_size=30_000)
        self.ours = Encoder()
        self.prepared = SimpleNamespace(num_heads=12)
        self.floor = SimpleNamespace(graph=lambda tokens: lambda: None)
        self.recorder = None
        self.failures: dict[str, str] = {}

    def sdpa(self, **inputs: torch.Tensor) -> Any:
        return SimpleNamespace(last_hidden_state=inputs["input_ids"])

    @contextmanager
    def guarded(self, name: str, where: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # as the real one
            self.failures[name] = f"{where}: {error}"

    def compare(self, where: str, contestants: Mapping[str, Callable[[], Callable[[], object]]]) -> dict[str, float]:
        found = {}
        for name, make in contestants.items():
            with self.guarded(name, where):
                make()()
                found[name] = 1.0
        return found


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> StubBench:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)
    monkeypatch.setattr(backlog, "REQUESTS", 300)
    return StubBench()


def test_a_backlog_keeps_all_rounds_of_every_contestant_and_why_one_did_not_run(bench: StubBench) -> None:
    part: Any = backlog.run(bench)  # type: ignore[arg-type]  # a stub
    assert [workload["name"] for workload in part["workloads"]] == ["2-100", "5-500", "SQuAD slice"]
    for workload in part["workloads"]:
        assert (
            set(workload["rounds_s"])
            == set(workload["seconds"])
            == {OURS, FLOOR, "transformers SDPA, sorted, batch 256"}
        )
        assert {len(rounds) for rounds in workload["rounds_s"].values()} == {backlog.ROUNDS}
        assert len(workload["tried"][OURS]) == 6
        assert set(workload["not_run"]) <= {UNPADDED}
    assert set(bench.failures) == {"packed torch"}


def test_a_single_request_has_alternatives_on_both_clocks(bench: StubBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "DRAWS", 2)
    part: Any = single.run(bench)  # type: ignore[arg-type]  # a stub
    found = GPU.measures({"parts": {"single": {"result": part}}})
    for name in ("ours", "ours, from the host", "transformers SDPA", "transformers SDPA, from the host", "floor"):
        assert found[f"one request, 2-100 tokens, {name}, ms"] == 1.0
