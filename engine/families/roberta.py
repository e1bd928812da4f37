"""RoBERTa, XLM-RoBERTa and CamemBERT (Liu et al. 2019): BERT's layers, positions from padding_idx + 1, another head."""

from penstock.engine.errors import CheckpointError
from penstock.engine.families.bert import read_encoder
from penstock.engine.families.readers import read_classifier
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.weights import Dense, EncoderWeights

_PREFIXES = ("", "roberta.")
_PROBE = "embeddings.word_embeddings.weight"


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder. Positions start at padding_idx + 1 (fairseq's numbering); the table's rows before it are cut off."""
    prefix, pad_token = checkpoint.weights.prefix(_PREFIXES, _PROBE), checkpoint.config.get("pad_token_id", 1)
    if not isinstance(pad_token, int):
        raise CheckpointError(f"config.json: 'pad_token_id' must be a token, not {pad_token!r}: positions follow it.")
    return read_encoder(checkpoint, prefix, pad_token)


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """RobertaForSequenceClassification, and MPNet's: dense, tanh, projection, on the first token <s>."""
    return read_classifier(checkpoint.weights, "classifier.dense", "tanh", "classifier.out_proj")
