"""Sequence to sequence by LSTMs: an encoder, whose last states start a decoder that reads its own tokens."""

import torch

from penstock.engine.cells.errors import InvalidCell
from penstock.engine.cells.graphs.graph import GraphBuilder
from penstock.engine.cells.models.layers import read_dense, read_stack, read_table
from penstock.engine.cells.models.lstm import generate_cell, read_cell
from penstock.engine.cells.models.model import CellModel, RequestFields
from penstock.engine.cells.models.requests import take_count, take_tokens
from penstock.engine.model.checkpoint import Tensors as Weights


def lstm_seq2seq(
    weights: Weights, *, start_token: int, end_token: int, dtype: torch.dtype = torch.float32, max_rows: int = 512
) -> CellModel:
    """A model of the tensors `encoder.*` and `decoder.*` (of nn.LSTM), their `*_embedding.weight`, and `output.*`.

    The LSTMs have equally many layers of equal width. A request with `tokens` and `max_tokens` gets the likeliest
    tokens one by one, from `start_token` until `end_token`, which is part of the result.
    """
    source, target = (read_table(weights, f"{part}_embedding.", dtype) for part in ("encoder", "decoder"))
    encoder = read_stack(weights, "encoder.", source.width, dtype)
    decoder = read_stack(weights, "decoder.", target.width, dtype)
    if encoder.states != decoder.states:
        raise InvalidCell(
            f"the encoder has {encoder.num_layers} layers of {encoder.width} and the decoder {decoder.num_layers} of "
            f"{decoder.width}; the decoder starts from the encoder's states, so they must be equal."
        )
    output = read_dense(weights, "output.", decoder.width, dtype, num_rows=len(target))
    cells = (
        read_cell("encode", source, encoder, max_rows),
        generate_cell("decode", target, decoder, output, end_token, max_rows),
    )

    def unfold(request: RequestFields, graph: GraphBuilder) -> None:
        encoded = graph.add("encode", token=take_tokens(request))
        graph.add("decode", reads=[encoded], token=[start_token], steps=take_count(request, "max_tokens"))

    return CellModel.of(cells, unfold)
