"""mBART and mBART-50 (Liu et al. 2020, Tang et al. 2020): BART, pre-norm. Two norms precede the first layer."""

from penstock.engine.families import bart
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.seq2seq import Seq2SeqWeights


def seq2seq(checkpoint: Checkpoint) -> Seq2SeqWeights:
    """The encoder, decoder and head of an mBART checkpoint."""
    return bart.seq2seq(checkpoint, pre_norm=True)
