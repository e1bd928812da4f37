"""transformers' `generate` with static batches: what a user would run today."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from penstock.ops.bench.cellular.generation.generation_load import Work

_PAD = 1


def static_requests_per_s(model: Any, work: Sequence[Work], batch: int, num_beams: int, seconds: float) -> float:
    """Requests a second in batches of `batch`, padded to the longest source, each run to its longest output.

    After one batch that is not counted, batches run until `seconds` have passed.
    """
    _generate(model, work[:batch], num_beams)
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        begin = (done + batch) % (len(work) - batch + 1)
        _generate(model, work[begin : begin + batch], num_beams)
        done += batch
    return done / (time.perf_counter() - started)


def _generate(model: Any, work: Sequence[Work], num_beams: int) -> None:
    longest = max(len(one.source) for one in work)
    ids = torch.full((len(work), longest), _PAD)
    for row, one in zip(ids, work, strict=True):
        row[: len(one.source)] = torch.from_numpy(one.source)
    new_tokens = max(one.new_tokens for one in work)
    ids = ids.to(model.device)
    with torch.inference_mode():
        found = model.generate(
            ids,
            attention_mask=(ids != _PAD).long(),
            num_beams=num_beams,
            do_sample=False,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            eos_token_id=None,
            forced_eos_token_id=None,
        )
    found.cpu()
