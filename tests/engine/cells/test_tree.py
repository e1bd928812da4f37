"""TreeLSTMs against their equations, by recursion over random trees."""

import random
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.engine.cells.errors import (
    CyclicGraph,
    DisconnectedGraph,
    EmptySequence,
    GraphTooLarge,
    InvalidGraph,
    InvalidSequence,
    WrongArity,
)
from penstock.engine.cells.graph import GraphLimits
from penstock.engine.cells.models.tree import binary_tree_classifier, child_sum_tree_classifier
from penstock.engine.model.checkpoint import Tensors, memory_checkpoint
from tests.engine.cells.loop import run_all

VOCAB, WORDS, WIDTH, LABELS = 30, 6, 9, 4
State = tuple[Tensor, Tensor]


def random_weights(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name.replace("__", "."): torch.randn(*shape, generator=generator) * 0.5 for name, shape in shapes.items()}


BINARY = random_weights(
    embedding__weight=(VOCAB, WORDS),
    cell__W_iou__weight=(3 * WIDTH, WORDS),
    cell__U_iou__weight=(3 * WIDTH, 2 * WIDTH),
    cell__b_iou=(1, 3 * WIDTH),
    cell__U_f__weight=(2 * WIDTH, 2 * WIDTH),
    cell__U_f__bias=(2 * WIDTH,),
    linear__weight=(LABELS, WIDTH),
    linear__bias=(LABELS,),
)
CHILD_SUM = random_weights(
    embedding__weight=(VOCAB, WORDS),
    cell__ioux__weight=(3 * WIDTH, WORDS),
    cell__ioux__bias=(3 * WIDTH,),
    cell__iouh__weight=(3 * WIDTH, WIDTH),
    cell__iouh__bias=(3 * WIDTH,),
    cell__fx__weight=(WIDTH, WORDS),
    cell__fx__bias=(WIDTH,),
    cell__fh__weight=(WIDTH, WIDTH),
    cell__fh__bias=(WIDTH,),
    linear__weight=(LABELS, WIDTH),
    linear__bias=(LABELS,),
)


def as_weights(tensors: dict[str, Tensor]) -> Tensors:
    return memory_checkpoint("random", {}, tensors).weights


def finish(iou: Tensor, kept: Tensor) -> State:
    i, o, u = iou.chunk(3)
    c = i.sigmoid() * u.tanh() + kept
    return o.sigmoid() * c.tanh(), c


def scores(h: Tensor, w: dict[str, Tensor]) -> Tensor:
    return (w["linear.weight"] @ h + w["linear.bias"]).softmax(0)


def binary_reference(tokens: Sequence[int], merges: Sequence[Sequence[int]], w: dict[str, Tensor]) -> Tensor:
    """Equations 9 to 14 of Tai et al., with N = 2, from the root down."""

    def state(node: int) -> State:
        if node < len(tokens):
            x = w["embedding.weight"][tokens[node]]
            return finish(w["cell.W_iou.weight"] @ x + w["cell.b_iou"][0], torch.zeros(WIDTH))
        (left_h, left_c), (right_h, right_c) = (state(child) for child in merges[node - len(tokens)])
        h = torch.cat((left_h, right_h))
        f = (w["cell.U_f.weight"] @ h + w["cell.U_f.bias"]).sigmoid()
        kept = f[:WIDTH] * left_c + f[WIDTH:] * right_c
        return finish(w["cell.U_iou.weight"] @ h + w["cell.b_iou"][0], kept)

    return scores(state(len(tokens) + len(merges) - 1)[0], w)


def child_sum_reference(tokens: Sequence[int], parents: Sequence[int], w: dict[str, Tensor]) -> Tensor:
    """Equations 2 to 8 of Tai et al., from the root down."""

    def linear(name: str, x: Tensor) -> Tensor:
        return w[f"cell.{name}.weight"] @ x + w[f"cell.{name}.bias"]

    def state(node: int) -> State:
        x = w["embedding.weight"][tokens[node]]
        children = [state(child) for child, parent in enumerate(parents) if parent == node]
        h_sum = sum((h for h, _ in children), torch.zeros(WIDTH))
        kept = sum(((linear("fx", x) + linear("fh", h)).sigmoid() * c for h, c in children), torch.zeros(WIDTH))
        return finish(linear("ioux", x) + linear("iouh", h_sum), kept)

    return scores(state(list(parents).index(-1))[0], w)


def random_binary(num_leaves: int, seed: int) -> dict[str, list[int] | list[list[int]]]:
    chance = random.Random(seed)
    roots, merges = list(range(num_leaves)), []
    while len(roots) > 1:
        place = chance.randrange(len(roots) - 1)
        merges.append([roots[place], roots.pop(place + 1)])
        roots[place] = num_leaves + len(merges) - 1
    return {"tokens": [chance.randrange(VOCAB) for _ in range(num_leaves)], "merges": merges}


def random_child_sum(num_nodes: int, seed: int) -> dict[str, list[int]]:
    """A tree of which no node has more than 8 children, its nodes in a random order."""
    chance = random.Random(seed)
    order = list(range(num_nodes))
    chance.shuffle(order)
    parents = [-1] * num_nodes
    for place in range(1, num_nodes):
        free = [node for node in order[:place] if parents.count(node) < 8]
        parents[order[place]] = chance.choice(free)
    return {"tokens": [chance.randrange(VOCAB) for _ in range(num_nodes)], "parents": parents}


@settings(max_examples=15)
@given(st.lists(st.integers(1, 25), min_size=1, max_size=6), st.integers(0, 10_000), st.sampled_from([1, 2]))
def test_binary_trees_follow_the_equations(sizes: list[int], seed: int, depth: int) -> None:
    requests = [random_binary(size, seed + index) for index, size in enumerate(sizes)]
    results = run_all(binary_tree_classifier(as_weights(BINARY)), requests, seed=seed, depth=depth)
    for request, result in zip(requests, results, strict=True):
        expected = binary_reference(request["tokens"], request["merges"], BINARY)  # type: ignore[arg-type]
        np.testing.assert_allclose(result["scores"][0], expected, atol=1e-5)


@settings(max_examples=15)
@given(st.lists(st.integers(1, 25), min_size=1, max_size=6), st.integers(0, 10_000), st.sampled_from([1, 2]))
def test_child_sum_trees_follow_the_equations(sizes: list[int], seed: int, depth: int) -> None:
    requests = [random_child_sum(size, seed + index) for index, size in enumerate(sizes)]
    results = run_all(child_sum_tree_classifier(as_weights(CHILD_SUM)), requests, seed=seed, depth=depth)
    for request, result in zip(requests, results, strict=True):
        expected = child_sum_reference(request["tokens"], request["parents"], CHILD_SUM)
        np.testing.assert_allclose(result["scores"][0], expected, atol=1e-5)


def test_a_binary_tree_needs_a_slot_for_each_leaf_and_no_more() -> None:
    results = run_all(binary_tree_classifier(as_weights(BINARY)), [random_binary(20, 1)] * 3, num_slots=21)
    assert len(results) == 3


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        ({"tokens": [], "merges": []}, EmptySequence, "at least one token"),
        ({"tokens": [1, 2], "merges": []}, DisconnectedGraph, "2 parts"),
        ({"tokens": [1, 2], "merges": [[0, 2]]}, CyclicGraph, "2 -> 2"),
        ({"tokens": [1, 2, 3], "merges": [[0, 4], [1, 3]]}, CyclicGraph, "cycle"),
        ({"tokens": [1, 2, 3], "merges": [[0, 4], [1, 2]]}, InvalidGraph, "listed later"),
        ({"tokens": [1, 2], "merges": [[0]]}, WrongArity, "pairs"),
        ({"tokens": [1, 2], "merges": [[0, 9]]}, InvalidGraph, "does not exist"),
        ({"tokens": [1, 2], "merges": [[0, -1]]}, InvalidSequence, "pairs"),
        ({"tokens": [1, 2], "merges": [[0, 2**40]]}, InvalidSequence, "cannot unfold"),
        ({"tokens": [1, 2], "merges": [5]}, InvalidSequence, "pairs"),
        ({"tokens": [1, 2], "merges": 5}, InvalidSequence, "list of pairs"),
        ({"tokens": [1, 2], "merges": [[0, 1.5]]}, InvalidSequence, "pairs"),
        ({"tokens": [1, 2], "merges": [[]]}, WrongArity, "pairs"),
    ],
)
def test_a_binary_tree_at_fault_is_rejected(request_: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        binary_tree_classifier(as_weights(BINARY)).unfold(request_)


def test_a_long_string_among_the_merges_takes_no_more_memory_than_the_request() -> None:
    """numpy would make each number as wide: 80 MB."""
    model = binary_tree_classifier(as_weights(BINARY))
    tracemalloc.start()
    try:
        with pytest.raises(InvalidSequence, match="pairs of nodes"):
            model.unfold({"tokens": [1, 2], "merges": [["x" * 10_000, 0], *[[0, 1]] * 1000]})
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        ({"tokens": [], "parents": []}, EmptySequence, "at least one token"),
        ({"tokens": [1, 2], "parents": [-1, -1]}, DisconnectedGraph, "2 roots"),
        ({"tokens": [1, 2, 3], "parents": [-1, 2, 1]}, CyclicGraph, "node 1"),
        ({"tokens": [1, 2], "parents": [1, 0]}, CyclicGraph, "node 0"),
        ({"tokens": [1] * 10, "parents": [-1] + [0] * 9}, WrongArity, "9 children"),
        ({"tokens": [1, 2], "parents": [-1]}, InvalidSequence, "2 indices"),
        ({"tokens": [1, 2], "parents": [-1, 7]}, InvalidSequence, "2 indices"),
    ],
)
def test_a_child_sum_tree_at_fault_is_rejected(
    request_: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        child_sum_tree_classifier(as_weights(CHILD_SUM)).unfold(request_)


def test_a_tree_deeper_than_the_limit_is_rejected_without_recursion() -> None:
    model = child_sum_tree_classifier(as_weights(CHILD_SUM))
    chain = {"tokens": [1] * 3000, "parents": list(range(-1, 2999))}
    with pytest.raises(GraphTooLarge, match="3001 nodes deep; at most 1024"):
        model.unfold(chain)
    assert len(model.unfold(chain, GraphLimits(max_depth=4000)).cells) == 3001
