"""TreeLSTM classifiers (Tai, Socher and Manning, ACL 2015): the binary one, and child-sum.

The binary tree (section 3.2 with N = 2) has words at its leaves, and none inside:

    i, o, u = W x + b                 of a leaf; U [h_1 h_2] + b inside
    f_k = sigmoid(U_f,k [h_1 h_2] + b_f,k)
    c = sigmoid(i) tanh(u) + f_1 c_1 + f_2 c_2
    h = sigmoid(o) tanh(c)

Child-sum (section 3.1) has a word at each node, and any number of children:

    i, o, u = W x + U (h_1 + ... + h_n) + b
    f_k = sigmoid(W_f x + U_f h_k + b_f)
    c = sigmoid(i) tanh(u) + f_1 c_1 + ... + f_n c_n
    h = sigmoid(o) tanh(c)
"""

from itertools import chain

import numpy as np
import torch
from torch import Tensor, nn

from penstock.engine.cells.contract import NO_NODE, Cell, CellSpec, Int32Array, StateSpec, Tensors
from penstock.engine.cells.errors import CyclicGraph, DisconnectedGraph, InvalidSequence, WrongArity
from penstock.engine.cells.graph import GraphBuilder, Rows, are_integers
from penstock.engine.cells.models.layers import DenseModule, Table, read_dense, read_table
from penstock.engine.cells.models.lstm import classify_cell
from penstock.engine.cells.models.model import CellModel, RequestFields, take_integers, take_tokens
from penstock.engine.model.checkpoint import Tensors as Weights


class LeafStep(nn.Module):
    """A leaf of a binary tree. It reads no state."""

    def __init__(self, words: Table, gates: DenseModule) -> None:
        super().__init__()
        self.words = words
        self.gates = gates

    def forward(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        x = self.words(inputs["token"])
        i, o, u = self.gates(x).chunk(3, 1)
        return _node(i, o, u, 0.0, x.dtype), {}


class MergeStep(nn.Module):
    """An inner node of a binary tree: one product for the gates i, o, u, f_1 and f_2."""

    def __init__(self, gates: DenseModule) -> None:
        super().__init__()
        self.gates = gates

    def forward(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        h, c = states["h"], states["c"]
        i, o, u, f_1, f_2 = self.gates(h.flatten(1)).chunk(5, 1)
        kept = torch.sigmoid(f_1) * c[:, 0] + torch.sigmoid(f_2) * c[:, 1]
        return _node(i, o, u, kept, h.dtype), {}


class ChildSumStep(nn.Module):
    """A node with a word and up to `arity` children. Children that are missing are zeros, which add nothing."""

    def __init__(self, words: Table, gates: DenseModule, forget: DenseModule, arity: int) -> None:
        """gates: of [x, sum of h] to i, o, u. forget: of [x, h_k] to f_k."""
        super().__init__()
        self.words = words
        self.gates = gates
        self.forget = forget
        self.arity = arity

    def forward(self, states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        x = self.words(inputs["token"])
        rows, width = len(x), states["h"].shape[-1]
        h, c = states["h"].view(rows, self.arity, width), states["c"].view(rows, self.arity, width)
        i, o, u = self.gates(torch.cat((x, h.sum(1)), 1)).chunk(3, 1)
        words = x[:, None].expand(-1, self.arity, -1)
        f = torch.sigmoid(self.forget(torch.cat((words, h), 2)))
        return _node(i, o, u, (f * c).sum(1), h.dtype), {}


def _node(i: Tensor, o: Tensor, u: Tensor, kept: Tensor | float, dtype: torch.dtype) -> dict[str, Tensor]:
    c = torch.sigmoid(i) * torch.tanh(u) + kept
    return {"h": (torch.sigmoid(o) * torch.tanh(c)).to(dtype), "c": c}


def binary_tree_classifier(weights: Weights, *, dtype: torch.dtype = torch.float32, max_rows: int = 512) -> CellModel:
    """A model of DGL's tensors: `embedding.weight`, `cell.{W_iou,U_iou,U_f}.*`, `cell.b_iou` and `linear.*`.

    A request has `tokens`, of the leaves, and `merges`, pairs of nodes in an order in which each is made before it is
    merged. Leaves are nodes 0 to len(tokens) - 1, and merges the nodes after them; the last one is the root.
    """
    words = read_table(weights, "embedding.", dtype)
    w_iou = weights.take("cell.W_iou.weight", -1, words.width)
    width = len(w_iou) // 3
    b_iou = weights.take("cell.b_iou", 1, 3 * width)[0]
    u_iou, u_f = (
        weights.take("cell.U_iou.weight", 3 * width, 2 * width),
        weights.take("cell.U_f.weight", 2 * width, 2 * width),
    )
    merge = DenseModule(
        torch.cat((u_iou, u_f)).to(dtype), torch.cat((b_iou, weights.take("cell.U_f.bias", 2 * width))).to(dtype)
    )
    states = _states(width, dtype)
    leaf = CellSpec("leaf", states, ("token",), {"token": len(words)}, max_rows=max_rows, max_steps=1)
    inner = CellSpec("merge", states, arity=2, max_rows=max_rows, max_steps=1, priority=1)
    cells = (
        Cell(leaf, LeafStep(words, DenseModule(w_iou.to(dtype), b_iou.to(dtype)))),
        Cell(inner, MergeStep(merge)),
        classify_cell(states[0], read_dense(weights, "linear.", width, dtype), max_rows),
    )
    return CellModel.of(cells, _unfold_merges)


def _unfold_merges(request: RequestFields, graph: GraphBuilder) -> None:
    tokens = take_tokens(request)
    graph.add_each("leaf", len(tokens), token=tokens)
    merges = _pairs(request.get("merges", []))
    graph.add_each("merge", len(merges), reads=merges)
    graph.add("classify", reads=[len(tokens) + len(merges) - 1])


_NO_PAIRS = np.empty((0, 2), np.int64)


def _pairs(merges: object) -> Rows:
    """Pairs of nodes [M, 2], of which no number is below 0."""
    if not isinstance(merges, list | tuple):
        raise InvalidSequence("`merges` must be a list of pairs of nodes.")
    if not merges:
        return _NO_PAIRS
    try:
        is_sound = are_integers(chain.from_iterable(merges))
        pairs = np.array(merges) if is_sound else _NO_PAIRS
    except (TypeError, ValueError):  # one is no list, or they are not equally long
        pairs = _NO_PAIRS
    if len(pairs) and pairs.ndim == 2 and pairs.shape[1] == 2 and pairs.dtype == np.int64 and pairs.min() >= 0:
        return pairs
    for merge in merges:
        if not isinstance(merge, list | tuple) or not all(isinstance(node, int) and node >= 0 for node in merge):
            raise InvalidSequence(f"`merges` must be pairs of nodes. Given: {merge!r}")
        if len(merge) != 2:
            raise WrongArity(f"`merges` must be pairs of nodes. Given: {len(merge)} in {merge!r}")
    raise InvalidSequence("`merges` must be pairs of nodes.")


def child_sum_tree_classifier(
    weights: Weights, *, arities: tuple[int, ...] = (1, 2, 8), dtype: torch.dtype = torch.float32, max_rows: int = 512
) -> CellModel:
    """A model of the tensors `embedding.weight`, `cell.{ioux,iouh,fx,fh}.*` and `linear.*`.

    A request has `tokens`, one of each node, and `parents`, the index of each node's parent; the root's is -1. A node
    runs as the smallest of `arities` that holds its children; the largest is the limit.
    """
    words = read_table(weights, "embedding.", dtype)
    of_word = weights.take("cell.ioux.weight", -1, words.width)
    width = len(of_word) // 3
    gates = _joined(weights, "cell.ioux.", "cell.iouh.", words.width, 3 * width, width, dtype)
    forget = _joined(weights, "cell.fx.", "cell.fh.", words.width, width, width, dtype)
    states = _states(width, dtype)
    cells = [
        Cell(
            CellSpec(
                f"node{arity}",
                states,
                ("token",),
                {"token": len(words)},
                arity=arity,
                max_rows=max_rows,
                max_steps=1,
                priority=int(arity > 1),
            ),
            ChildSumStep(words, gates, forget, arity),
        )
        for arity in sorted(arities)
    ]
    cells.append(classify_cell(states[0], read_dense(weights, "linear.", width, dtype), max_rows))

    def unfold(request: RequestFields, graph: GraphBuilder) -> None:
        _unfold_parents(request, graph, sorted(arities))

    return CellModel.of(cells, unfold)


def _joined(
    weights: Weights, of_word: str, of_state: str, num_inputs: int, num_rows: int, width: int, dtype: torch.dtype
) -> DenseModule:
    """Two linear maps that are added, as one."""
    parts = [
        read_dense(weights, of_word, num_inputs, dtype, num_rows),
        read_dense(weights, of_state, width, dtype, num_rows),
    ]
    return DenseModule(
        torch.cat([part.get_buffer("weight") for part in parts], 1),
        parts[0].get_buffer("bias") + parts[1].get_buffer("bias"),
    )


def _unfold_parents(request: RequestFields, graph: GraphBuilder, arities: list[int]) -> None:
    tokens, parents = take_tokens(request), take_integers(request, "parents")
    if len(parents) != len(tokens) or parents.min() < -1 or parents.max() >= len(tokens):
        raise InvalidSequence(f"`parents` must be {len(tokens)} indices of nodes, or -1, one for each token.")
    children: list[list[int]] = [[] for _ in tokens]
    for node, parent in enumerate(parents.tolist()):
        if parent >= 0:
            children[parent].append(node)
    number: dict[int, int] = {}  # index in the request -> number in the graph
    for node in reversed(_from_root(parents, children)):
        found = [number[child] for child in children[node]]
        arity = next((arity for arity in arities if arity >= len(found)), None)
        if arity is None:
            raise WrongArity(f"node {node} has {len(found)} children; the model takes at most {arities[-1]}.")
        reads = found + [NO_NODE] * (arity - len(found))
        number[node] = graph.add(f"node{arity}", reads=reads, token=tokens[node : node + 1])
    graph.add("classify", reads=[len(number) - 1])


def _from_root(parents: Int32Array, children: list[list[int]]) -> list[int]:
    """All nodes, each after its parent; the root is first."""
    order = [node for node, parent in enumerate(parents.tolist()) if parent < 0]
    if len(order) > 1:
        raise DisconnectedGraph(f"the tree has {len(order)} roots, nodes {order[:8]}. Send each tree as a request.")
    for node in order:  # grows
        order.extend(children[node])
    if len(order) < len(parents):
        node = min(set(range(len(parents))) - set(order))
        raise CyclicGraph(f"node {node} is its own ancestor, or below one. A tree has no cycle.")
    return order


def _states(width: int, dtype: torch.dtype) -> tuple[StateSpec, StateSpec]:
    return StateSpec("h", width, dtype), StateSpec("c", width)
