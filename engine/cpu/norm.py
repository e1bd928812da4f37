"""LayerNorm and RMSNorm of rows on a CPU."""

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.model.weights import Norm


def normalise(x: Tensor, norm: Norm) -> Tensor:
    """The norm over the last dimension, with float32 statistics for any type of x."""
    if norm.subtracts_mean:
        return torch.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
    return F.rms_norm(x.float(), norm.weight.shape, norm.weight.float(), norm.eps).to(x.dtype)
