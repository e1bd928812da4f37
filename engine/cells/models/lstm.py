"""LSTM cells and their models: language model, classifier, sequence to sequence."""

import torch
from torch import nn

from penstock.engine.cells.contract import Cell, CellSpec, StateSpec, Tensors
from penstock.engine.cells.errors import EmptySequence, InvalidCell
from penstock.engine.cells.graph import GraphBuilder
from penstock.engine.cells.models.layers import DenseModule, LstmStack, Table, read_dense, read_stack, read_table
from penstock.engine.cells.models.model import CellModel, RequestFields, take_count, take_tokens
from penstock.engine.model.checkpoint import Tensors as Weights

# Of one batch of a chain. A batch is longer than 8 steps only where the host needs as long for the next one: a GPU may
# run a step in 15 us.
MAX_STEPS = 32
MAX_FED_BACK_STEPS = 8  # likewise, where a chain may stop at any step: its row idles until the batch ends


class ReadStep(nn.Module):
    """A step over a token of the input. It emits nothing."""

    def __init__(self, words: Table, stack: LstmStack) -> None:
        super().__init__()
        self.words = words
        self.stack = stack

    def forward(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        return self.stack(self.words(inputs["token"]), states), {}


class GenerateStep(ReadStep):
    """A step that emits the likeliest next token."""

    def __init__(self, words: Table, stack: LstmStack, output: DenseModule) -> None:
        super().__init__(words, stack)
        self.output = output

    def forward(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        new = self.stack(self.words(inputs["token"]), states)
        return new, {"token": self.output(new[self.stack.top.name]).argmax(1, keepdim=True).int()}


class ScoreStep(GenerateStep):
    """A step that emits the log probability of the token that follows."""

    def forward(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        new = self.stack(self.words(inputs["token"]), states)
        logits = self.output(new[self.stack.top.name])
        return new, {"score": logits.log_softmax(1).gather(1, inputs["target"].long()[:, None])}


class ClassifyStep(nn.Module):
    """Scores of a state h; the state stays as it is."""

    def __init__(self, state: str, output: DenseModule) -> None:
        super().__init__()
        self.state = state
        self.output = output

    def forward(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        return states, {"scores": self.output(states[self.state]).softmax(1)}


def lstm_language_model(
    weights: Weights, *, end_token: int, dtype: torch.dtype = torch.float32, max_rows: int = 512
) -> CellModel:
    """A model of the tensors `embedding.weight`, `lstm.*` (of nn.LSTM) and `output.*`.

    A request with `max_tokens` continues its `tokens` until `end_token`. One without gets the log probability of each
    of its tokens after the first.
    """
    words = read_table(weights, "embedding.", dtype)
    stack = read_stack(weights, "lstm.", words.width, dtype)
    output = read_dense(weights, "output.", stack.width, dtype, num_rows=len(words))
    sizes = {"token": len(words)}
    scored = CellSpec(
        "score",
        stack.states,
        ("token", "target"),
        sizes | {"target": len(words)},
        (StateSpec("score", 1),),
        max_rows=max_rows,
        max_steps=MAX_STEPS,
    )
    cells = (
        read_cell("read", words, stack, max_rows),
        generate_cell("generate", words, stack, output, end_token, max_rows),
        Cell(scored, ScoreStep(words, stack, output)),
    )

    def unfold(request: RequestFields, graph: GraphBuilder) -> None:
        tokens = take_tokens(request)
        if "max_tokens" in request:
            read = [graph.add("read", token=tokens[:-1])] if len(tokens) > 1 else []
            graph.add("generate", reads=read, token=tokens[-1:], steps=take_count(request, "max_tokens"))
        elif len(tokens) > 1:
            graph.add("score", token=tokens[:-1], target=tokens[1:])
        else:
            raise EmptySequence("a sequence of one token has no score: nothing comes before it.")

    return CellModel.of(cells, unfold)


def lstm_classifier(weights: Weights, *, dtype: torch.dtype = torch.float32, max_rows: int = 512) -> CellModel:
    """A model of the tensors `embedding.weight`, `lstm.*` (of nn.LSTM) and `output.*`: scores after the last token."""
    words = read_table(weights, "embedding.", dtype)
    stack = read_stack(weights, "lstm.", words.width, dtype)
    output = read_dense(weights, "output.", stack.width, dtype)
    cells = (read_cell("read", words, stack, max_rows), classify_cell(stack.top, output, max_rows))

    def unfold(request: RequestFields, graph: GraphBuilder) -> None:
        read = graph.add("read", token=take_tokens(request))
        graph.add("classify", reads=[read])

    return CellModel.of(cells, unfold)


def lstm_seq2seq(
    weights: Weights, *, start_token: int, end_token: int, dtype: torch.dtype = torch.float32, max_rows: int = 512
) -> CellModel:
    """An encoder, whose last states start a decoder that reads its own tokens.

    The tensors are `encoder.*` and `decoder.*` (of nn.LSTM), their `*_embedding.weight`, and `output.*`.

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


def read_cell(name: str, words: Table, stack: LstmStack, max_rows: int) -> Cell:
    """A chain over tokens that are given."""
    spec = CellSpec(name, stack.states, ("token",), {"token": len(words)}, max_rows=max_rows, max_steps=MAX_STEPS)
    return Cell(spec, ReadStep(words, stack))


def generate_cell(
    name: str, words: Table, stack: LstmStack, output: DenseModule, end_token: int, max_rows: int
) -> Cell:
    """A chain over tokens that it emits itself, after the first, until it emits `end_token`."""
    spec = CellSpec(
        name,
        stack.states,
        ("token",),
        {"token": len(words)},
        (StateSpec("token", 1, torch.int32),),
        feedback={"token": "token"},
        stop={"token": end_token},
        max_rows=max_rows,
        max_steps=MAX_FED_BACK_STEPS,
        priority=1,
    )
    return Cell(spec, GenerateStep(words, stack, output))


def classify_cell(state: StateSpec, output: DenseModule, max_rows: int) -> Cell:
    """One step that emits a score of each label."""
    emits = (StateSpec("scores", len(output)),)
    spec = CellSpec("classify", (state,), emits=emits, max_rows=max_rows, max_steps=1, priority=1)
    return Cell(spec, ClassifyStep(state.name, output))
