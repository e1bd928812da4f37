"""M2M100 and NLLB-200 (Fan et al. 2020, NLLB Team 2022): BART's layers, pre-norm, sinusoids that leave out padding."""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.families.bart import prefix_of, read_seq2seq, read_words
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import Config, require_int, setting
from penstock.engine.model.seq2seq import Seq2SeqWeights, TokenEmbeddings

_DEFAULTS = {"activation_function": "relu", "scale_embedding": True}  # others than BART's


def seq2seq(checkpoint: Checkpoint) -> Seq2SeqWeights:
    """The encoder, decoder and head of an M2M100 or NLLB-200 checkpoint."""
    checkpoint = replace(checkpoint, config=Config(_DEFAULTS | checkpoint.config))
    config, prefix = checkpoint.config, prefix_of(checkpoint)
    pad_token = setting(config, "pad_token_id", 1)
    positions = _sinusoids(
        pad_token + 1, require_int(config, "max_position_embeddings", 1024), require_int(config, "d_model")
    )

    def embeddings(stack: str) -> TokenEmbeddings:
        return TokenEmbeddings(read_words(checkpoint, prefix, stack), positions, pad_token=pad_token)

    return read_seq2seq(checkpoint, embeddings("encoder"), embeddings("decoder"), pre_norm=True)


def _sinusoids(first: int, max_tokens: int, hidden: int) -> Tensor:
    """[max_tokens, hidden]: sines, then cosines, of the angles of positions from `first` on, and 0 in an odd column.

    In float32 and in the reference's order of operations.
    """
    half = hidden // 2
    steps = torch.exp(torch.arange(half).float() * -(math.log(10000) / (half - 1)))
    angles = torch.arange(first, first + max_tokens).float()[:, None] * steps
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, hidden % 2))
