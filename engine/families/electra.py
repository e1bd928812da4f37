"""ELECTRA's discriminator (Clark et al. 2020): BERT's layers on embeddings that may be narrower, another head."""

from penstock.engine.families.bert import read_encoder
from penstock.engine.families.readers import read_classifier
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.weights import Dense, EncoderWeights

_PREFIXES = ("", "electra.")
_PROBE = "embeddings.word_embeddings.weight"


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of an ELECTRA checkpoint: the same for discriminator and generator."""
    return read_encoder(checkpoint, checkpoint.weights.prefix(_PREFIXES, _PROBE))


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """ElectraForSequenceClassification: dense, always GELU, projection, on the first token."""
    return read_classifier(checkpoint.weights, "classifier.dense", "gelu", "classifier.out_proj")
