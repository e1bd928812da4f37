"""The GPU benchmarks without a GPU: lengths, batches, ratios, rounds, the report, and the plain torch forward."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.gpu.ops import prepare_for_gpu
from penstock.engine.model.forward import forward
from penstock.ops.bench.common import lengths
from penstock.ops.bench.common.runner import is_failed, run_suite
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.gpu.contestants import packed_torch
from penstock.ops.bench.gpu.contestants.contestant import contestants, of_one_batch
from penstock.ops.bench.gpu.gpu_tables import GPU, TABLES, geomean
from penstock.ops.bench.gpu.request_batches import (
    pack,
    pad,
    padded_width,
    random_requests,
)
from penstock.ops.bench.suites import GPU as SUITE


def test_lengths_are_the_same_for_the_same_seed_and_have_not_changed() -> None:
    assert lengths.uniform(2, 100, 6, 2026).tolist() == lengths.uniform(2, 100, 6, 2026).tolist()
    assert lengths.uniform(2, 100, 6, 2026).tolist() != lengths.uniform(2, 100, 6, 2027).tolist()
    assert lengths.uniform(2, 100, 6, 2026).tolist() == UNIFORM_2026
    drawn = lengths.uniform(2, 100, 4096, 1)
    assert (drawn.min(), drawn.max()) == (2, 100)


@given(st.sampled_from([64, 512, 1024]), st.floats(0.05, 1.0), st.integers(0, 1000))
def test_lengths_around_a_mean_stay_in_range_and_have_that_mean(max_tokens: int, ratio: float, seed: int) -> None:
    drawn = lengths.around_mean(max_tokens, ratio, 4000, seed)
    assert 1 <= drawn.min() <= drawn.max() <= max_tokens
    assert drawn.mean() == pytest.approx(ratio * max_tokens, rel=0.05, abs=1)


def test_at_0_6_lengths_span_from_a_fifth_of_the_maximum_to_it() -> None:
    drawn = lengths.around_mean(500, 0.6, 20_000, 0)
    assert (drawn.min(), drawn.max()) == (100, 500)
    with pytest.raises(ValueError, match=r"ratio is 1\.5"):
        lengths.around_mean(500, 1.5, 1, 0)


def test_packing_and_padding_hold_the_same_tokens() -> None:
    requests = random_requests(np.array([3, 11, 1]), 30_000, 0)
    ids, mask = pad(requests)
    assert mask is not None
    assert ids.shape == mask.shape == (3, padded_width(11)) == (3, 16)
    batch = pack(requests)
    assert ids[mask == 1].tolist() == batch.token_ids.tolist()
    assert batch.cu_seqlens.tolist() == [0, 3, 14, 15]
    assert pad(requests[:1])[1] is None


@given(st.integers(1, 20_000), st.integers(0, 100))
def test_lengths_for_a_kernel_add_up(tokens: int, seed: int) -> None:
    drawn = lengths.filling(tokens, 2, 100, seed)
    assert drawn.sum() == tokens
    assert 1 <= drawn.min() <= drawn.max() <= 100


def test_the_mean_of_ratios_is_geometric() -> None:
    assert geomean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(geomean([]))


def test_every_contestant_is_found_and_none_shares_a_name() -> None:
    names = [field[0] for one in contestants() for field in (one.resident, one.hosted) if field]
    assert {"ours", "floor", "transformers SDPA", "packed torch, one graph"} <= set(names)
    bench: Any = None  # nothing is made yet
    usual = {"ours", "ours, from the host", "transformers SDPA", "packed torch, one graph", "floor"}
    assert of_one_batch(bench, []).keys() >= usual
    assert of_one_batch(bench, [], all_hosted=True).keys() >= {"transformers SDPA, from the host"}
    for kind in ("resident", "hosted"):
        own = [getattr(one, kind)[0] for one in contestants() if getattr(one, kind)]
        assert len(own) == len(set(own))


def test_the_tables_of_a_run_show_what_was_measured_and_why_a_contestant_was_not() -> None:
    text = SUITE.shown(Run(Path(), RECORD))
    for shown in (
        "| one request, 2-100 tokens, inputs on the device, ms | 1.300 |",
        "| bias + residual + LayerNorm, 4,096 tokens | 10.00 | 9.000 | 20.00 | 0.800 |",
        "| attention, 16,384 tokens of 2-100 | 40.00 | 97.00 | 23.80 |",
    ):
        assert shown in text
    assert all(table() for table in TABLES.values())  # of the kept runs


def test_a_part_that_failed_leaves_no_measure() -> None:
    no_rows = {name: _part({"rows": []}) for name in ("parity", "products")}
    empty: dict[str, Any] = {**RECORD, "parts": {"fill": RECORD["parts"]["fill"], **no_rows}}
    assert GPU.measures(empty) == {}
    assert SUITE.shown(Run(Path(), empty)) == ""
    assert is_failed(RECORD["parts"]["single"])
    assert is_failed(RECORD["parts"]["fill"])
    assert not is_failed(RECORD["parts"]["kernels"])


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_every_part_says_so(tmp_path: Path) -> None:
    assert run_suite(SUITE, ["ceilings", "kernels", "--output", str(tmp_path), "--commit", "abc1234"]) == 1
    (file,) = tmp_path.glob("gpu/*/*-abc1234.json")
    parts = json.loads(file.read_text(encoding="utf-8"))["parts"]
    assert [part["error"] for part in parts.values()] == ["the process could not start: exit code 1"] * 2


def test_measures_are_taken_within_the_run() -> None:
    found = GPU.measures(RECORD)
    assert found["one request, 2-100 tokens, ours, over the floor"] == pytest.approx(1.3)
    assert found["kernel, attention, 16,384 tokens of 2-100, time over FlashAttention-2"] == pytest.approx(40 / 97)


def test_packed_torch_computes_what_transformers_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a reference in place of FlashAttention-2, which needs a GPU."""
    from transformers import BertConfig, BertModel

    from penstock.engine.packed_model import weights_of

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
        hidden = forward(encoder, packed_torch.TorchOps.upload(pack(requests), encoder.num_heads, cpu))
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


UNIFORM_2026 = [86, 19, 4, 65, 38, 48]


def _part(result: Any, error: str | None = None, failures: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"error": error, "seconds": 1.0, "failures": failures or {}, "result": result}


def _kernel(tokens: int) -> dict[str, Any]:
    times = {"us": 10.0, "torch_us": 20.0, "copy_us": 9.0}
    name = "bias + residual + LayerNorm"
    return {"kernel": name, "tokens": tokens, "bytes": 10**7, "share_of_copy": 0.8, **times}


RECORD: dict[str, Any] = {
    "command": "python -m penstock.ops.bench.gpu --output result.json",
    "started": "2026-01-01T00:00:00+00:00",
    "commit": "abc123",
    "seed": 2026,
    "machine": {
        "gpu": "NVIDIA H200",
        "cuda": "13.0",
        "nvidia_smi": {"driver_version": "580"},
        "versions": {"torch": "2"},
    },
    "parts": {
        "single": _part(
            {"workloads": [{"low": 2, "high": 100, "points": [{"tokens": 9, "ms": {"ours": 1.3, "floor": 1.0}}]}]},
            failures={"packed torch": {"error": "RuntimeError: no", "where": "single 9 tokens", "count": 2}},
        ),
        "kernels": _part(
            {
                "copy_bytes_per_s": 4e12,
                "hidden": 768,
                "rows": [_kernel(1024), _kernel(4096)],
                "attention": [
                    {
                        "tokens": 16384,
                        "lengths": "2-100",
                        "sequences": 320,
                        "us": 40.0,
                        "flash_us": 97.0,
                        "byte_floor_us": 23.8,
                    }
                ],
            }
        ),
        "fill": _part(None, error="not finished after 90 s"),
    },
}
