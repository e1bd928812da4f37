"""The weights of an encoder of any family, and the parts that a decoder shares with it.

A family's reader returns an `Encoder[Dense]`, float32 on the CPU. A device makes an `Encoder[D]` of it with `prepared`,
where D is its own form of a matrix.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar

from torch import Tensor

from penstock.engine.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Dense:
    """y = activation(x @ weight.T + bias), on rows."""

    weight: Tensor  # [out, in]
    bias: Tensor | None  # [out]
    activation: str  # a name that engine.model.dense.activate knows

    def apply(self, convert: Callable[[Tensor], Tensor]) -> "Dense":
        """The layer with both of its tensors converted."""
        return replace(self, weight=convert(self.weight), bias=None if self.bias is None else convert(self.bias))


@dataclass(frozen=True, slots=True)
class Norm:
    """LayerNorm over the last dimension, or RMSNorm."""

    weight: Tensor  # [H]
    bias: Tensor | None  # [H]
    eps: float
    subtracts_mean: bool = True  # False: RMSNorm (Zhang and Sennrich 2019), which has no bias


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Word + position + token type, then the norm. Row i of `positions` belongs to a sequence's i-th token.

    With a pad token, its row is the last one, and i counts the other tokens: see `engine.model.positions`.
    """

    words: Tensor  # [V, E]
    positions: Tensor | None  # [max_tokens, E], without the rows of a family's offset; one more with a pad token
    token_types: Tensor | None  # [K, E]
    norm: Norm | None
    pad_token: int | None = None

    @property
    def max_tokens(self) -> int | None:
        """Longest sequence that the table of positions allows; None: any."""
        return None if self.positions is None else len(self.positions) - (self.pad_token is not None)


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads of attention. queries / keys heads in a row share a key head (Ainslie et al. 2023: grouped queries)."""

    queries: int
    keys: int  # and values
    dim: int

    def __post_init__(self) -> None:
        if self.queries % self.keys:
            raise CheckpointError(
                f"config.json: {self.keys} heads of keys do not divide {self.queries} attention heads."
            )

    @classmethod
    def of(cls, hidden_size: int, num_heads: int) -> "Heads":
        """Equal heads that share a hidden size. Raises CheckpointError."""
        if hidden_size % num_heads:
            raise CheckpointError(
                f"config.json: {num_heads} attention heads do not divide a hidden size of {hidden_size}."
            )
        return cls(num_heads, num_heads, hidden_size // num_heads)

    @property
    def width(self) -> int:
        """Values of a token's context."""
        return self.queries * self.dim

    @property
    def key_width(self) -> int:
        """Values of a token's keys."""
        return self.keys * self.dim


@dataclass(frozen=True, slots=True)
class PlainAttention:
    """softmax(q k^T / sqrt(head_dim)) v over all tokens of a sequence."""


@dataclass(frozen=True, slots=True)
class DistanceAttention:
    """Plain attention with a learned bias for each distance, the same in every layer (MPNet, T5; Shaw et al. 2018).

    All distances of at least D share a bias (Raffel et al. 2020, section 2.1), so sequences may be of any length.
    """

    bias: Tensor  # [num_heads, 2D + 1]: column D + d belongs to a key that is d tokens after its query


@dataclass(frozen=True, slots=True)
class DisentangledAttention:
    """DeBERTa's attention (He et al. 2021, section 3.1), with terms of content to position and position to content.

    The relative embeddings are projected at load.
    """

    key_positions: Tensor | None  # [2 * span, H]: content to position; None where the model has no such term
    query_positions: Tensor | None  # [2 * span, H]: position to content
    num_buckets: int  # logarithmic buckets of distances; below 1: one row a distance
    max_distance: int  # distances beyond it share the last bucket

    @property
    def num_terms(self) -> int:
        """Products that are added up in a score, which is divided by sqrt(num_terms * head_dim)."""
        return 1 + (self.key_positions is not None) + (self.query_positions is not None)


@dataclass(frozen=True, slots=True)
class RotaryAttention:
    """Plain attention with rotary positions (Su et al. 2021), over all tokens, those before, or a window of either."""

    cosines: Tensor  # [max_tokens, head_dim / 2]; dimension i is paired with i + head_dim / 2
    sines: Tensor  # [max_tokens, head_dim / 2]
    window: int | None = None  # largest distance between tokens that attend to each other; None: no limit
    is_causal: bool = False  # whether a token attends to itself and those before only
    query_norm: Norm | None = None  # of each head, before it is turned (Qwen3, Gemma 3)
    key_norm: Norm | None = None


Attention = PlainAttention | DistanceAttention | DisentangledAttention | RotaryAttention


def cached_bias(attention: Attention) -> Tensor | None:
    """[num_heads, 2D + 1]: the bias by which a decoder attends to cached keys; None: plain attention."""
    match attention:
        case PlainAttention():
            return None
        case DistanceAttention():
            return attention.bias
        case _:
            raise RuntimeError(f"no cached attention for {type(attention).__name__}. This is a bug.")


D = TypeVar("D")
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Layer(Generic[D]):
    """One transformer layer (Vaswani et al. 2017; Devlin et al. 2019). Each norm follows an addition.

    In a pre-norm encoder `output_norm` is the next layer's first norm, or the final one after the last layer.
    """

    qkv: D  # [(queries + 2 keys) * dim, H]: query, key and value rows in this order; heads contiguous within each
    attention: Attention
    attention_output: D  # [H, queries * dim]
    attention_norm: Norm
    up: D  # [I, H], with the MLP's activation; [2I, H], without one, where there is a gate
    down: D  # [H, I]
    output_norm: Norm
    gate: str | None = None  # activation(first I columns) * last I columns (Shazeer 2020: GeGLU and others)
    # Of the results of attention and MLP, before they are added (Gemma 2's sandwich; Ding et al. 2021, section 2.4)
    inner_norms: tuple[Norm, Norm] | None = None


@dataclass(frozen=True, slots=True)
class Convolution(Generic[D]):
    """norm(first layer's output + activation(convolution of the embeddings)): DeBERTa-v2's larger models."""

    dense: D  # [H, kernel_size * H]: the weights of each neighbour, from the furthest before to the furthest after
    kernel_size: int  # odd
    norm: Norm


@dataclass(frozen=True, slots=True)
class Encoder(Generic[D]):
    """Embeddings and layers. A model whose layers share their weights (ALBERT) lists one `Layer` many times."""

    embeddings: Embeddings
    projection: D | None  # [H, E], where embeddings are narrower than the layers (ELECTRA, ALBERT)
    layers: tuple[Layer[D], ...]
    heads: Heads
    max_tokens: int | None  # longest sequence the weights allow; None: any
    convolution: Convolution[D] | None = None  # parallel to the first layer
    pre_norm: bool = False  # whether layers pass on the sum (true) or the norm of the sum
    first_norm: Norm | None = None  # of a pre-norm encoder's first layer; None: it reads the embeddings as they are

    @property
    def hidden_size(self) -> int:
        return len(self.layers[0].output_norm.weight)

    @property
    def vocab_size(self) -> int:
        return self.embeddings.words.shape[0]

    def prepared(
        self: "Encoder[Dense]", dense: Callable[[Dense], E], table: Callable[[Tensor], Tensor]
    ) -> "Encoder[E]":
        """The encoder with `dense` applied to every matrix and `table` to every other tensor, once each."""
        result: Encoder[E] = convert_weights(self, dense, table)
        return result


EncoderWeights = Encoder[Dense]


def convert_weights(weights: Any, dense: Callable[[Dense], Any], table: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a tree of weights with `dense` applied to every matrix and `table` to every other tensor, once each."""
    converted: dict[int, Any] = {}  # by id, as weights and layers may be shared

    def convert(value: Any) -> Any:
        if id(value) in converted:
            return converted[id(value)]
        result = value
        if isinstance(value, Dense):
            result = dense(value)
        elif isinstance(value, Tensor):
            result = table(value)
        elif isinstance(value, tuple):
            result = tuple([convert(item) for item in value])
        elif is_dataclass(value) and not isinstance(value, type):
            result = replace(value, **{field.name: convert(getattr(value, field.name)) for field in fields(value)})
        converted[id(value)] = result
        return result

    return convert(weights)
