"""The task of a route that names none: that of the model's head, as of a request that names none."""

from typing import Any

import pytest

from penstock.engine.types import ModelInfo
from penstock.producer.errors import UnsupportedTask
from penstock.worker.routes.route import Route
from penstock.worker.routes.settings import RouteSettings


def route(*tasks: str, **settings: Any) -> Route:
    info = ModelInfo("tiny", "r", "float32", "cpu", 100, 8, frozenset(tasks), 4, ("a", "b"))
    return Route(RouteSettings(input_topic="in", output_topic="out", text="t", **settings), info)


@pytest.mark.parametrize(
    ("tasks", "natural"),
    [
        ({"embed"}, "embed"),
        ({"embed", "classify", "entail"}, "classify"),
        ({"embed", "token_classify"}, "token_classify"),
        ({"embed_sparse"}, "embed_sparse"),
        ({"embed", "embed_sparse", "embed_tokens", "embed_all"}, "embed"),
        ({"generate"}, "generate"),
    ],
)
def test_it_is_the_task_of_the_models_head(tasks: set[str], natural: str) -> None:
    assert route(*tasks).task == natural


def test_a_task_that_is_named_is_the_routes() -> None:
    assert route("embed", "classify", task="embed").task == "embed"


def test_a_reranker_needs_a_query_or_another_task() -> None:
    with pytest.raises(UnsupportedTask, match="needs a query"):
        route("rerank", "classify", "embed")
    assert route("rerank", "classify", "embed", task="classify").task == "classify"
    assert route("rerank", "classify", "embed", task="rerank", query="q").task == "rerank"


@pytest.mark.parametrize("task", ["embed_tokens", "sequence"])
def test_a_model_of_other_tasks_is_refused(task: str) -> None:
    with pytest.raises(UnsupportedTask, match="no task that a route can have"):
        route(task)
