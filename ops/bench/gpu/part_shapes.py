"""Requests/s of one shape of model, ids on the host to vectors on the host, beside transformers and the floor."""

import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from penstock.engine.gpu import GpuEncoder
from penstock.engine.gpu.engine import GpuEngine
from penstock.engine.gpu.ops import GpuDense, prepare_for_gpu
from penstock.engine.model.forward import forward
from penstock.engine.model.results import EmbeddingTail
from penstock.engine.model.weights import Encoder, EncoderWeights, PlainAttention
from penstock.engine.packed_model import weights_of
from penstock.engine.types import Int32Array, ModelInfo
from penstock.ops.bench.common.draws import filling
from penstock.ops.bench.common.shapes import SHAPES, VOCAB
from penstock.ops.bench.gpu.bench import DTYPE, Bench, pack, random_requests
from penstock.ops.bench.gpu.contestants.packed_torch import TorchOps
from penstock.ops.bench.gpu.floor import GemmFloor, LayerSizes
from penstock.ops.bench.gpu.gpu_tables import FLOOR, OURS, PACKED, SDPA
from penstock.ops.bench.gpu.timing import Work, once_ms, wall_s

RANGES = ((2, 100), (5, 500), (100, 2000))
BATCH_TOKENS = 16_384  # of the engine's batches: the default of `penstock worker` on a GPU
_BATCHES = 8  # of a load
_ROUNDS, _WARM_UPS = 5, 3
_SDPA_SIZES = (256, 128, 64, 32, 8)  # requests a batch, of which the fastest counts
_MUCH_SLOWER = 1.2  # times the fastest so far: smaller batches are slower still
_ONE_TOKENS, _ONE_ROUNDS = 50, 50

Batches = Sequence[Sequence[Int32Array]]


def run(bench: Bench, name: str) -> dict[str, Any]:
    """One shape: three loads of eight batches, and one request alone. About 25 s."""
    model, weights = random_model(bench, SHAPES[name]())
    with torch.inference_mode(False):
        sdpa = model.to(DTYPE)
    engine = engine_of(name, weights)
    floor_s = _BATCHES * once_of(floor_of(bench, weights, BATCH_TOKENS).graph(BATCH_TOKENS)) / 1e3
    loads = []
    for low, high in RANGES:
        batches = [
            random_requests(filling(BATCH_TOKENS, low, high, seed), VOCAB, seed)
            for seed in range(bench.seed, bench.seed + _BATCHES)
        ]
        seconds = {FLOOR: floor_s}
        with bench.guarded(OURS, f"{name}, {low}-{high} tokens"):
            seconds[OURS] = _engine_s(engine, batches)
        with bench.guarded(SDPA, f"{name}, {low}-{high} tokens"):
            seconds[SDPA] = _sdpa_s(sdpa, batches)
        if all(isinstance(layer.attention, PlainAttention) for layer in weights.layers):
            with bench.guarded(PACKED, f"{name}, {low}-{high} tokens"):
                seconds[PACKED] = _packed_s(prepare_for_gpu(weights, DTYPE, bench.device), batches)
        loads.append({"low": low, "high": high, "requests": sum(map(len, batches)), "s": seconds})
    (one,) = random_requests(filling(_ONE_TOKENS, _ONE_TOKENS, _ONE_TOKENS, bench.seed), VOCAB, bench.seed)
    return {"shape": name, "loads": loads, "one_request_ms": once_of(lambda: engine.run(pack([one])), _ONE_ROUNDS)}


def random_model(bench: Bench, config: Any) -> tuple[nn.Module, EncoderWeights]:
    """transformers' model of a configuration, float32 on the device, and its weights as the engine reads them."""
    torch.manual_seed(bench.seed)
    make: Any = transformers.AutoModel
    with torch.inference_mode(False), bench.device:
        model: nn.Module = make.from_config(config).eval().requires_grad_(False)
        return model, weights_of(model)


def once_of(work: Work, rounds: int = _ROUNDS) -> float:
    """Median milliseconds of one call on an idle device."""
    for _ in range(_WARM_UPS):
        work()
    return statistics.median(once_ms(work) for _ in range(rounds))


def engine_of(name: str, weights: EncoderWeights) -> GpuEngine:
    """As `load_engine` makes it of a checkpoint whose vectors are means."""
    encoder = GpuEncoder(weights, DTYPE)
    most = weights.max_tokens or RANGES[-1][1]
    info = ModelInfo(name, "random", "float16", "cuda", VOCAB, most, frozenset({"embed"}), weights.hidden_size, ())
    engine = GpuEngine(info, Path(), encoder, EmbeddingTail("mean", (), normalize=True), {})
    engine.warm_up()
    return engine


def _engine_s(engine: GpuEngine, batches: Batches) -> float:
    """Median seconds of all batches, one after another, the next prepared while one runs, as a lane does it."""
    packed = [pack(requests) for requests in batches]

    def work() -> None:
        running = engine.start(packed[0])
        for batch in packed[1:]:
            following = engine.start(batch)
            running.result()
            running = following
        running.result()

    for _ in range(_WARM_UPS):
        work()
        engine.idle()
    return statistics.median(wall_s(work) for _ in range(_ROUNDS))


def floor_of(bench: Bench, weights: EncoderWeights, max_tokens: int) -> GemmFloor:
    """The products of the weights' layers, of as many tokens at most."""
    layer = weights.layers[0]
    (qkv, hidden), (up, _), (_, down) = (one.weight.shape for one in (layer.qkv, layer.up, layer.down))
    sizes = LayerSizes(hidden, qkv, layer.attention_output.weight.shape[1], up, down)
    return GemmFloor(sizes, len(weights.layers), max_tokens, bench.recorder)


def _packed_s(encoder: Encoder[GpuDense], batches: Batches) -> float:
    """Seconds of torch's own operators over the same batches, without padding, by its FlashAttention-2."""
    return min(wall_s(partial(_packed_passes, encoder, batches)) for _ in range(_ROUNDS))


def _packed_passes(encoder: Encoder[GpuDense], batches: Batches) -> None:
    for requests in batches:
        ops = TorchOps.upload(pack(requests), encoder.heads.queries, torch.device("cuda"))
        torch.segment_reduce(forward(encoder, ops), "mean", offsets=ops.cu_seqlens.long()).cpu()


def _sdpa_s(model: nn.Module, batches: Batches) -> float:
    """Seconds of transformers over the same requests, sorted by length and padded, in batches of the best size.

    The size is chosen on every fourth request.
    """
    requests = sorted((one for some in batches for one in some), key=len)
    tried: dict[int, float] = {}
    for size in _SDPA_SIZES:
        tried[size] = _best_s(model, requests[::4], size)
        if tried[size] > _MUCH_SLOWER * min(tried.values()):
            break
    return _best_s(model, requests, min(tried, key=tried.__getitem__))


def _best_s(model: nn.Module, requests: Sequence[Int32Array], size: int) -> float:
    return min(wall_s(partial(_padded_passes, model, requests, size)) for _ in range(2))


def _padded_passes(model: nn.Module, requests: Sequence[Int32Array], size: int) -> None:
    for first in range(0, len(requests), size):
        some = [torch.from_numpy(one).long() for one in requests[first : first + size]]
        ids = pad_sequence(some, batch_first=True).cuda(non_blocking=True)
        mask = pad_sequence([torch.ones_like(one) for one in some], batch_first=True).cuda(non_blocking=True)
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask[..., None].to(hidden.dtype)
        ((hidden * weight).sum(1) / weight.sum(1)).cpu()
