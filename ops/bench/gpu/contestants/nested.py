"""torch's nn.TransformerEncoder of BERT-base's shape, which turns a padding mask into nested tensors.

Layers only: its input is hidden states, so the embedding is not in its time.
"""

from functools import cache

import torch
from torch import nn

from penstock.ops.bench.gpu.bench import Bench
from penstock.ops.bench.gpu.contestants.contestant import Contestant, Requests
from penstock.ops.bench.gpu.models import DTYPE
from penstock.ops.bench.gpu.request_batches import pad
from penstock.ops.bench.gpu.timing import Work


@cache
def _encoder() -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=True).eval().to("cuda", DTYPE)


def _one_forward(bench: Bench, requests: Requests) -> Work:
    ids, mask = pad(requests)
    x = torch.randn(*ids.shape, 768, device="cuda", dtype=DTYPE)
    padding = None if mask is None else torch.from_numpy(mask == 0).cuda()
    encoder = _encoder()
    return lambda: encoder(x, src_key_padding_mask=padding)


CONTESTANTS = (Contestant(resident=("nn.TransformerEncoder nested", _one_forward), is_slow=True),)
