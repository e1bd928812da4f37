"""The state of records and requests is changed by their own methods, so that each change has one place."""

import ast
import dataclasses
from pathlib import Path

from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import PendingRequest, StageTimes
from penstock.worker.requests.sequence_block import SequenceBlock

WORKER = Path(__file__).parents[3] / "worker"
LEDGER = {"record.state", "record.epoch", "record.num_sequences"}  # the ledger's part of a record


def test_no_other_file_assigns_a_field_of_a_record_or_of_a_request() -> None:
    classes = (PendingRecord, PendingRequest, SequenceBlock, StageTimes)
    fields = {field.name for one in classes for field in dataclasses.fields(one)}
    found = {
        path.relative_to(WORKER).as_posix(): targets
        for path in WORKER.rglob("*.py")
        if (targets := assigned_attributes(path, fields))
    }
    assert found.pop("requests/ledger.py") <= LEDGER | {"request.record.num_sequences"}
    assert found == {}


def assigned_attributes(path: Path, fields: set[str]) -> set[str]:
    """Attributes of these names that a file assigns, but those of `self`."""
    return {
        ast.unparse(node)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in fields
        if not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }
