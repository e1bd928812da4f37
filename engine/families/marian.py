"""Marian (Junczys-Dowmunt et al. 2018): BART's layers, sinusoidal positions, no norm after the embeddings."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.families.bart import prefix_of, read_seq2seq, read_words
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int
from penstock.engine.model.seq2seq import Seq2SeqWeights, TokenEmbeddings


def seq2seq(checkpoint: Checkpoint, *, pre_norm: bool = False) -> Seq2SeqWeights:
    """The encoder, decoder and head of a Marian checkpoint, with one table of words or two."""
    config, weights, prefix = checkpoint.config, checkpoint.weights, prefix_of(checkpoint)
    size = require_int(config, "max_position_embeddings"), require_int(config, "d_model")

    def embeddings(stack: str) -> TokenEmbeddings:
        saved = f"{prefix}{stack}.embed_positions.weight"  # counts where it is there: it may be rounded, or trained
        positions = weights.take(saved, *size) if saved in weights else _sinusoids(*size)
        return TokenEmbeddings(read_words(checkpoint, prefix, stack), positions)

    return read_seq2seq(checkpoint, embeddings("encoder"), embeddings("decoder"), pre_norm=pre_norm)


def _sinusoids(max_tokens: int, hidden: int) -> Tensor:
    """[max_tokens, hidden]: sines in the first half of the columns, cosines in the second (Vaswani et al. 2017)."""
    columns = np.arange(hidden)
    angles = np.arange(max_tokens)[:, None] / np.power(10000, 2 * (columns // 2) / hidden)
    table = np.concatenate([np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])], axis=1)
    return torch.from_numpy(table.astype(np.float32))
