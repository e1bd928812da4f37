"""jina-embeddings-v3 (Sturua et al. 2024) in transformers' form: XLM-RoBERTa with rotary positions.

Adapters for tasks (LoRA) are files of their own there, which neither transformers nor this reader loads unasked.
"""

from penstock.engine.families.rotary_encoder import RotaryFamily, RotaryNames, read_encoder
from penstock.engine.model.checkpoint import Checkpoint
from penstock.engine.model.weights import EncoderWeights

_PUBLISHED = RotaryNames(
    embedding_norm="emb_ln",
    layers="encoder.layers",
    qkv=("mixer.Wqkv",),
    attention=("mixer.out_proj", "norm1"),
    up=("mlp.fc1",),
    down="mlp.fc2",
    norm="norm2",
)
_FAMILY = RotaryFamily(
    prefixes=("", "roberta."),
    layouts=(_PUBLISHED, RotaryNames(up=("mlp.fc1",), down="mlp.fc2")),
    theta=20_000.0,
    eps=1e-5,
    activation="gelu",
    has_gate=False,
    biases=(True, True, True),
    max_tokens=8194,
)


def encoder(checkpoint: Checkpoint) -> EncoderWeights:
    """The encoder, in the published layout, which transformers writes too, or in that of its classes."""
    return read_encoder(checkpoint, _FAMILY)
