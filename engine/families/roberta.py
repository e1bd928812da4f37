"""RoBERTa, XLM-RoBERTa and CamemBERT (Liu et al. 2019): BERT's layers, positions from padding_idx + 1, another head."""

from penstock.engine.families.bert import read_encoder
from penstock.engine.families.readers import read_classifier
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.weights import Dense, EncoderWeights

_PREFIXES = ("", "roberta.")
_PROBE = "embeddings.word_embeddings.weight"


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder. Positions start at padding_idx + 1 (fairseq's numbering); the table's rows before it are cut off."""
    prefix = checkpoint.weights.prefix(_PREFIXES, _PROBE)
    return read_encoder(checkpoint, prefix, first_position=int(checkpoint.config.get("pad_token_id", 1)) + 1)


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """RobertaForSequenceClassification, and MPNet's: dense, tanh, projection, on the first token <s>."""
    return read_classifier(checkpoint.weights, "classifier.dense", "tanh", "classifier.out_proj")
