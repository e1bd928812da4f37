"""One request by its length, inputs on the device, beside the floor: batches that do not fill the device."""

from functools import partial
from typing import Any

from penstock.engine.gpu import GpuEncoder
from penstock.ops.bench.common.draws import filling
from penstock.ops.bench.common.shapes import SHAPES, VOCAB
from penstock.ops.bench.gpu.bench import DTYPE, Bench, pack, random_requests
from penstock.ops.bench.gpu.contestants.ours import resident
from penstock.ops.bench.gpu.gpu_tables import FLOOR, OURS
from penstock.ops.bench.gpu.part_shapes import floor_of, random_model

NAMES = ("BERT-base", "bge-m3", "ModernBERT-base")
TOKENS = (50, 128, 256, 384, 448, 512, 768, 1024)


def run(bench: Bench) -> dict[str, Any]:
    """About 15 s."""
    return {"shapes": {name: _points(bench, name) for name in NAMES}}


def _points(bench: Bench, name: str) -> list[dict[str, Any]]:
    _, weights = random_model(bench, SHAPES[name]())
    encoder, floor = GpuEncoder(weights, DTYPE), floor_of(bench, weights, max(TOKENS))
    points = []
    for tokens in TOKENS:
        batch = pack(random_requests(filling(tokens, tokens, tokens, bench.seed), VOCAB, bench.seed))
        works = {OURS: partial(resident, encoder, batch), FLOOR: partial(floor.graph, tokens)}
        points.append({"tokens": tokens, "ms": bench.compare(f"{name}, {tokens} tokens", works)})
    return points
