"""Parts of the GPU benchmarks from end to end without a GPU: their models are stubs, and time is the host's."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from penstock.ops.bench.gpu.gpu_tables import GPU
from penstock.ops.bench.gpu.parts import single


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
    return StubBench()


def test_a_single_request_has_alternatives_on_both_clocks(bench: StubBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "DRAWS", 2)
    part: Any = single.run(bench)  # type: ignore[arg-type]  # a stub
    found = GPU.measures({"parts": {"single": {"result": part}}})
    for name in ("ours", "ours, from the host", "transformers SDPA", "transformers SDPA, from the host", "floor"):
        assert found[f"one request, 2-100 tokens, {name}, ms"] == 1.0
