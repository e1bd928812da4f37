"""The loads of the pipeline, by device."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.ops.bench.load.loads import LONG, ROWS, SHORT, Load, special_tokens

NULL = "null"
# Large batches and one lane, because there is no computation. As on a GPU, no batch waits to become fuller.
NULL_WORKER: Sequence[str] = (
    *("--lanes", "1", "--max-wait-ms", "0"),
    *("--max-batch-tokens", "65536", "--max-batch-sequences", "1024"),
)
SCALE_RATE_PER_S = 60_000.0  # open loop of the largest fleet of part `scale`


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of the loads for one kind of device: enough in flight to keep it busy, and rates within its reach."""

    short_lists: int  # callers of a client process, with lists of SHORT sequences
    long_lists: int
    singles: int  # callers with one sequence
    rates_per_s: Sequence[float]
    deadline_s: float  # of requests under overload
    alone_short: int  # requests of a pass through the engine alone
    alone_long: int
    st_batches: Sequence[int]  # batch sizes that SentenceTransformer.encode tries
    job_rows: int  # of a bulk job


SCALES: Mapping[str, Scale] = {
    "cuda": Scale(24, 12, 1024, (1000, 8000, 10_000, 25_000), 0.2, 16_384, 4096, (64, 128, 256, 512), 250_000),
    "cpu": Scale(6, 4, 256, (50, 200), 2.0, 256, 64, (32, 64), 3000),
    "null": Scale(24, 24, 1024, (1000,), 0.2, 0, 0, (), 0),
}


def closed_loads(scale: Scale, warm_s: float, seconds: float, *, max_tokens: int, texts: bool) -> list[Load]:
    """Loads that saturate a fleet, in the order of the table; none with sequences that the model does not take.

    `texts`: the model has a tokenizer.
    """
    (short, short_end), (long, long_end) = SHORT, LONG
    loads = [
        Load("ids 2-100", "ids", short, short_end, ROWS, scale.short_lists),
        Load("ids 5-500", "ids", long, long_end, ROWS, scale.long_lists),
        Load("shared calls", "ids", short, short_end, 1, scale.singles),
        Load("a record each", "ids", short, short_end, 1, scale.singles, batch_calls=False),
    ]
    if texts:
        loads += [
            Load("texts 2-100", "texts", short, short_end, ROWS, scale.short_lists),
            Load("texts 5-500", "texts", long, long_end, ROWS, scale.long_lists),
        ]
    taken = [load for load in loads if load.high + special_tokens(load.payload) <= max_tokens]
    return [dataclasses.replace(load, warm_s=warm_s, seconds=seconds) for load in taken]
