"""PEGASUS (Zhang et al. 2020): Marian's embeddings and BART's layers, pre-norm."""

from penstock.engine.families import marian
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.seq2seq import Seq2SeqWeights


def seq2seq(checkpoint: Checkpoint) -> Seq2SeqWeights:
    """The encoder, decoder and head of a PEGASUS checkpoint."""
    return marian.seq2seq(checkpoint, pre_norm=True)
