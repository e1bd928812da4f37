"""The GPU benchmarks without a GPU: lengths, batches, ratios, rounds, the report, and the plain torch forward."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModel, BertConfig, BertModel

from penstock.engine.gpu.ops import prepare_for_gpu
from penstock.engine.gpu.support import require_supported
from penstock.engine.model.forward import forward
from penstock.engine.packed_model import weights_of
from penstock.ops.bench.common import draws
from penstock.ops.bench.common.runner import is_failed, run_suite
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.shapes import SHAPES
from penstock.ops.bench.gpu import gpu_tables, part_single
from penstock.ops.bench.gpu.bench import (
    pack,
    random_requests,
)
from penstock.ops.bench.gpu.contestants import contestants, ours, packed_torch, products, sdpa
from penstock.ops.bench.gpu.gpu_tables import GPU
from penstock.ops.bench.suites import GPU as SUITE


def test_lengths_are_the_same_for_the_same_seed_and_have_not_changed() -> None:
    assert draws.uniform(2, 100, 6, 2026).tolist() == draws.uniform(2, 100, 6, 2026).tolist()
    assert draws.uniform(2, 100, 6, 2026).tolist() != draws.uniform(2, 100, 6, 2027).tolist()
    assert draws.uniform(2, 100, 6, 2026).tolist() == [86, 19, 4, 65, 38, 48]
    drawn = draws.uniform(2, 100, 4096, 1)
    assert (drawn.min(), drawn.max()) == (2, 100)


@given(st.integers(1, 20_000), st.integers(0, 100))
def test_lengths_for_a_kernel_add_up(tokens: int, seed: int) -> None:
    drawn = draws.filling(tokens, 2, 100, seed)
    assert drawn.sum() == tokens
    assert 1 <= drawn.min() <= drawn.max() <= 100


def test_every_contestant_is_found_and_none_shares_a_name() -> None:
    modules = (ours, packed_torch, products, sdpa)
    assert sum(len(module.CONTESTANTS) for module in modules) == len(contestants())
    every = {"ours", "transformers SDPA", "packed torch"}
    assert contestants().keys() >= {f"{name}, from the host" for name in every} | {"ours", "transformers SDPA", "floor"}


def test_a_part_that_failed_leaves_no_measure() -> None:
    whole: dict[str, Any] = {"error": None, "failures": {}, "result": {}}
    failed = {**whole, "error": "not finished after 90 s", "result": None}
    record = {"machine": {}, "parts": {"failed": failed}}
    assert GPU.measures(record) == {}
    assert SUITE.shown(Run(Path(), record)) == ""
    assert is_failed(failed)
    assert is_failed({**whole, "failures": {"packed torch": {"error": "RuntimeError: no"}}})
    assert not is_failed(whole)


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_every_part_says_so(tmp_path: Path) -> None:
    assert run_suite(SUITE, ["single", "kernels", "--output", str(tmp_path), "--commit", "abc1234"]) == 1
    (file,) = tmp_path.glob("gpu/*/*-abc1234.json")
    parts = json.loads(file.read_text(encoding="utf-8"))["parts"]
    assert [part["error"] for part in parts.values()] == ["the process could not start: exit code 1"] * 2


def test_packed_torch_computes_what_transformers_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a reference in place of FlashAttention-2, which needs a GPU."""
    monkeypatch.setattr(packed_torch, "flash_varlen", attention_of_each)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    config = BertConfig(**sizes, vocab_size=2000, initializer_range=0.2)
    model: Any = BertModel(config, add_pooling_layer=False).train(False)
    requests = random_requests(np.array([5, 1, 12]), 2000, 0)
    cpu = torch.device("cpu")
    with torch.inference_mode():
        encoder = prepare_for_gpu(weights_of(model), torch.float32, cpu)
        hidden = forward(encoder, packed_torch.TorchOps.upload(pack(requests), encoder.heads.queries, cpu))
        alone = [model(input_ids=torch.from_numpy(request)[None].long()).last_hidden_state[0] for request in requests]
    torch.testing.assert_close(hidden, torch.cat(alone), rtol=1e-4, atol=1e-4)


def attention_of_each(qkv: torch.Tensor, cu_seqlens: torch.Tensor, longest: int, num_heads: int) -> torch.Tensor:
    contexts = []
    for start, end in pairwise(cu_seqlens.tolist()):
        rows = qkv[start:end]
        query, key, value = rows.view(len(rows), 3, num_heads, -1).permute(1, 2, 0, 3)
        context = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        contexts.append(context.transpose(0, 1).reshape(len(rows), -1))
    return torch.cat(contexts)


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
    """The `Bench` of a machine without a GPU: time is the host's. Packed torch has no device, so it fails."""

    def __init__(self) -> None:
        self.seed = 2026
        self.weights = SimpleNamespace(vocab_size=30_000)
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
    monkeypatch.setattr(part_single, "DRAWS", 2)
    part: Any = part_single.run(bench)  # type: ignore[arg-type]  # a stub
    found = GPU.measures({"parts": {"single": {"result": part}}})
    for name in ("ours", "ours, from the host", "transformers SDPA", "transformers SDPA, from the host", "floor"):
        assert found[f"one request, 2-100 tokens, {name}, ms"] == 1.0


def test_a_request_of_a_length_is_over_the_floor_of_that_length() -> None:
    points = [{"tokens": tokens, "ms": {"ours": 0.6, "floor": tokens / 2048}} for tokens in (512, 1024)]
    found = GPU.measures({"parts": {"rows": {"result": {"shapes": {"bge-m3": points}}}}})
    assert found["by length, bge-m3, 1,024 tokens, ours, ms"] == 0.6
    assert found["by length, bge-m3, 512 tokens, over the floor"] == pytest.approx(2.4)


def test_the_share_of_a_shape_is_of_its_floor() -> None:
    seconds = {"ours": 0.5, "floor": 0.4, "transformers SDPA": 1.5}
    loads = [{"low": 2, "high": 100, "requests": 300, "s": seconds}]
    part = {"shape": "NomicBERT", "loads": loads, "one_request_ms": 0.7}
    found = GPU.measures({"parts": {"shape-NomicBERT": {"result": part}, "shape-GTE-base": {"result": None}}})
    assert found == {
        "shape, NomicBERT, one request, ms": 0.7,
        "shape, NomicBERT, 2-100 tokens, ours, req/s": 600,
        "shape, NomicBERT, 2-100 tokens, floor, req/s": 750,
        "shape, NomicBERT, 2-100 tokens, transformers SDPA, req/s": 200,
        "shape, NomicBERT, 2-100 tokens, share of the floor": 0.8,
        "shape, NomicBERT, 2-100 tokens, over transformers SDPA": 3,
    }


@pytest.mark.parametrize("name", gpu_tables.SHAPES)
def test_a_gpu_has_the_kernels_of_every_shape(name: str) -> None:
    config = SHAPES[name]()
    config.num_hidden_layers = 2
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[-2:]
    make: Any = AutoModel
    require_supported(weights_of(make.from_config(config)))
