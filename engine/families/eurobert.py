"""EuroBERT (Boizard et al. 2025): Llama's layers without a causal mask."""

from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.families.llama import read_llama
from penstock.engine.families.readers import read_classifier
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.files import setting
from penstock.engine.model.weights import Dense, EncoderWeights

_POOLINGS = {"bos": "cls", "mean": "mean", "late": "late"}


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder of a EuroBERT checkpoint."""
    return read_llama(checkpoint, eps=1e-5, max_tokens=8192, is_causal=False)


def classifier(checkpoint: Checkpoint) -> tuple[Dense, ...]:
    """EuroBertForSequenceClassification: dense, activation, classifier."""
    return read_classifier(checkpoint.weights, "dense", "gelu", "classifier")


def classifier_pooling(checkpoint: Checkpoint) -> str:
    """The states that the classifier reads. Raises UnsupportedCheckpoint."""
    pooling = setting(checkpoint.config, "classifier_pooling", "late")
    if pooling not in _POOLINGS:
        raise UnsupportedCheckpoint(f"{checkpoint.directory}: classifier_pooling {pooling!r} is not implemented.")
    return _POOLINGS[pooling]
