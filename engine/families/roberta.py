"""RoBERTa, XLM-RoBERTa and CamemBERT (Liu et al. 2019): BERT's layers, positions from padding_idx + 1, another head."""

from penstock.engine.errors import CheckpointError
from penstock.engine.families.bert import read_encoder
from penstock.engine.families.readers import read_classifier, read_dense, read_masked_lm, read_norm
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import require_int, setting
from penstock.engine.model.weights import Dense, EncoderWeights, Norm

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


def masked_lm(checkpoint: Checkpoint) -> tuple[Dense | Norm, ...]:
    """RobertaForMaskedLM: dense, always GELU, norm, decoder."""
    return read_lm_head(checkpoint, checkpoint.weights.prefix(_PREFIXES, _PROBE) + _PROBE)


def read_lm_head(checkpoint: Checkpoint, words: str) -> tuple[Dense | Norm, ...]:
    """The head that MPNet has too. words: name of the word table."""
    config, weights = checkpoint.config, checkpoint.weights
    hidden, eps = require_int(config, "hidden_size"), setting(config, "layer_norm_eps", 1e-12)
    transform = (
        read_dense(weights, "lm_head.dense", hidden, hidden, "gelu"),
        read_norm(weights, "lm_head.layer_norm", hidden, eps),
    )
    return read_masked_lm(checkpoint, transform, "lm_head.decoder", words, own_bias="lm_head.bias")
