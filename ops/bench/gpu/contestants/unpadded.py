"""sentence-transformers with FlashAttention-2, which leaves the padding out. Needs the package flash-attn."""

from functools import partial
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn
from transformers import DataCollatorWithFlattening

from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import Contestant, Requests, Ways
from penstock.ops.bench.gpu.request_batches import by_count, by_length

UNPADDED = "sentence-transformers, FlashAttention-2 without padding, sorted"
_BATCHES = (32, 256, 1024)  # sequences


def flattened_inputs(requests: Requests) -> dict[str, Any]:
    """Inputs of a transformers model with FlashAttention-2 and no padding, as sentence-transformers 6 makes them."""
    make: Any = DataCollatorWithFlattening
    collator = make(return_flash_attn_kwargs=True, return_position_ids=True)
    features = collator([{"input_ids": request.tolist()} for request in requests])
    names = ("input_ids", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    found = {name: features[name] for name in names}
    return {name: v.cuda(non_blocking=True) if isinstance(v, Tensor) else v for name, v in found.items()}


def missing() -> str | None:
    """Why it cannot run here."""
    return None if find_spec("flash_attn") is not None else "flash-attn is not installed"


def _ways(bench: Bench, requests: Requests) -> Ways:
    """As sentence-transformers 6 runs a model with FlashAttention-2: sorted by length, sequences laid end to end."""
    model: nn.Module = bench.bert.on_device("flash_attention_2")

    def once(count: int) -> None:
        for batch in by_count(by_length(requests), count):
            model(**flattened_inputs(batch))

    return {f"batch {count}": partial(once, count) for count in _BATCHES}


CONTESTANTS = (Contestant(backlog=(UNPADDED, _ways), missing=missing),)
