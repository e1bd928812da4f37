"""One encoder, whatever its family called its tensors: what a checkpoint's reader returns and a device prepares.

`Encoder[Dense]` is as in the checkpoint, all float32 on the CPU. A device makes an `Encoder[D]` of it with `prepared`,
where D is what that device multiplies with.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeVar

from torch import Tensor

from penstock.engine.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Dense:
    """y = activation(x @ weight.T + bias), on rows."""

    weight: Tensor  # [out, in]
    bias: Tensor | None  # [out]
    activation: str  # a name that engine.linear.activate knows


@dataclass(frozen=True, slots=True)
class Norm:
    """LayerNorm over the last dimension."""

    weight: Tensor  # [H]
    bias: Tensor | None  # [H]
    eps: float


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Word + position + token type, then LayerNorm. Row i of `positions` belongs to a sequence's i-th token."""

    words: Tensor  # [V, E]
    positions: Tensor | None  # [max_tokens, E]; whatever the family's offset, it has been cut off
    token_types: Tensor | None  # [K, E]
    norm: Norm


@dataclass(frozen=True, slots=True)
class PlainAttention:
    """softmax(q k^T / sqrt(head_dim)) v, all tokens of a sequence seeing all."""


@dataclass(frozen=True, slots=True)
class BiasedAttention:
    """Plain attention with a learned bias for each distance, the same in every layer (MPNet; Shaw et al. 2018)."""

    bias: Tensor  # [num_heads, max_tokens, max_tokens], for query i and key j


@dataclass(frozen=True, slots=True)
class DisentangledAttention:
    """DeBERTa's (He et al. 2021, section 3.1): content to position and position to content beside content to content.

    The projections of the relative embeddings are weights, so they are made once, at load.
    """

    key_positions: Tensor | None  # [2 * span, H]: content to position; None where the model has no such term
    query_positions: Tensor | None  # [2 * span, H]: position to content
    num_buckets: int  # logarithmic buckets of distances; below 1: one row a distance
    max_distance: int  # distances beyond it share the last bucket

    @property
    def num_terms(self) -> int:
        """How many products are added up in a score: it is divided by sqrt(num_terms * head_dim)."""
        return 1 + (self.key_positions is not None) + (self.query_positions is not None)


@dataclass(frozen=True, slots=True)
class RotaryAttention:
    """Plain attention of queries and keys turned by their positions (Su et al. 2021), of all tokens or of near ones."""

    cosines: Tensor  # [max_tokens, head_dim / 2]; dimension i is paired with i + head_dim / 2
    sines: Tensor  # [max_tokens, head_dim / 2]
    window: int | None  # tokens further apart than this do not see each other; None: all see all


Attention = PlainAttention | BiasedAttention | DisentangledAttention | RotaryAttention

D = TypeVar("D")
E = TypeVar("E")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Layer(Generic[D]):
    """One transformer layer (Vaswani et al. 2017; Devlin et al. 2019). Each norm follows an addition.

    In a pre-norm encoder `output_norm` is thus the next layer's first norm, or after the last layer the final one.
    """

    qkv: D  # [3H, H]: query, key and value rows in this order; heads contiguous within each
    attention: Attention
    attention_output: D  # [H, H]
    attention_norm: Norm
    up: D  # [I, H], with the MLP's activation; [2I, H], without one, where there is a gate
    down: D  # [H, I]
    output_norm: Norm
    gate: str | None = None  # activation(first I columns) * last I columns (Shazeer 2020's GeGLU and kin)


@dataclass(frozen=True, slots=True)
class Convolution(Generic[D]):
    """norm(first layer's output + activation(convolution of the embeddings)): DeBERTa-v2's larger models."""

    dense: D  # [H, kernel_size * H]: the weights for each neighbour in turn, from the furthest before to that after
    kernel_size: int  # odd
    norm: Norm


@dataclass(frozen=True, slots=True)
class Encoder(Generic[D]):
    """Embeddings and layers. A model whose layers share their weights (ALBERT) lists one `Layer` many times."""

    embeddings: Embeddings
    projection: D | None  # [H, E], where embeddings are narrower than the layers (ELECTRA, ALBERT)
    layers: tuple[Layer[D], ...]
    hidden_size: int
    num_heads: int
    max_tokens: int | None  # longest sequence the weights allow; None: any
    convolution: Convolution[D] | None = None  # beside the first layer
    pre_norm: bool = False  # whether what is carried from layer to layer is the sum (true) or the norm of the sum

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise CheckpointError(
                f"config.json: {self.num_heads} attention heads do not divide a hidden size of {self.hidden_size}."
            )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def vocab_size(self) -> int:
        return self.embeddings.words.shape[0]

    def prepared(self, dense: Callable[[D], E], table: Callable[[Tensor], Tensor]) -> "Encoder[E]":
        """The same encoder with every matrix through `dense` and every other tensor through `table`, each once."""
        tables, layers = dict[int, Tensor](), dict[int, Layer[E]]()

        def table_once(tensor: Tensor) -> Tensor:
            if id(tensor) not in tables:
                tables[id(tensor)] = table(tensor)
            return tables[id(tensor)]

        for layer in self.layers:
            if id(layer) not in layers:
                layers[id(layer)] = _prepared_layer(layer, dense, table_once)
        return Encoder(
            embeddings=with_tables(self.embeddings, table_once),
            projection=None if self.projection is None else dense(self.projection),
            layers=tuple(layers[id(layer)] for layer in self.layers),
            hidden_size=self.hidden_size,
            num_heads=self.num_heads,
            max_tokens=self.max_tokens,
            convolution=_prepared_convolution(self.convolution, dense, table_once),
            pre_norm=self.pre_norm,
        )


EncoderWeights = Encoder[Dense]


def _prepared_layer(layer: Layer[D], dense: Callable[[D], E], table: Callable[[Tensor], Tensor]) -> Layer[E]:
    return Layer(
        qkv=dense(layer.qkv),
        attention=with_tables(layer.attention, table),
        attention_output=dense(layer.attention_output),
        attention_norm=with_tables(layer.attention_norm, table),
        up=dense(layer.up),
        down=dense(layer.down),
        output_norm=with_tables(layer.output_norm, table),
        gate=layer.gate,
    )


def _prepared_convolution(
    convolution: Convolution[D] | None, dense: Callable[[D], E], table: Callable[[Tensor], Tensor]
) -> Convolution[E] | None:
    if convolution is None:
        return None
    return Convolution(dense(convolution.dense), convolution.kernel_size, with_tables(convolution.norm, table))


def with_tables(holder: T, table: Callable[[Tensor], Tensor]) -> T:
    """A copy of one of these dataclasses with its tensors, and those of its norm, through `table`."""
    changes: dict[str, Any] = {}
    for field in fields(holder):  # type: ignore[arg-type]  # callers pass dataclasses
        value = getattr(holder, field.name)
        if isinstance(value, Tensor):
            changes[field.name] = table(value)
        elif isinstance(value, Norm):
            changes[field.name] = with_tables(value, table)
    return replace(holder, **changes)  # type: ignore[type-var]  # callers pass dataclasses
