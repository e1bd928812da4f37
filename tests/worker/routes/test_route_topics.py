"""The topics of a worker with routes are each for one thing."""

from typing import Any

import pytest
from pydantic import ValidationError

from penstock.worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("requests", "out"),
        ("requests.bulk", "out"),
        ("in", "requests"),
        ("in", "requests.bulk"),
        ("in", "in.dead-letter"),
        ("in", "requests.dead-letter"),
    ],
)
def test_a_route_from_or_to_a_topic_of_requests_or_of_dead_letters_is_refused(source: str, output: str) -> None:
    given: Any = {"model": "null", "topic": "requests", "group_id": "group", "text": "/text"}
    given |= {"input_topic": source, "output_topic": output}
    with pytest.raises(ValidationError, match="is for requests, replays or dead letters of this worker"):
        WorkerSettings(**given)
