"""The cost tables that this machine keeps of a model, by its served name or by its checkpoint.

Used by commands that plan and estimate. A worker's own table has an exact key (`startup_costs`).
"""

import datetime
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from penstock.cache import CostKey, CostTables
from penstock.producer.settings_sources import FileSettings
from penstock.producer.wire.topics import served_name_of
from penstock.worker.batching.startup_costs import MeasuredCosts, kept_costs
from penstock.worker.resolved_settings import default_cost_path

REVISION_CHARS = 16  # that are shown


class CostSettings(FileSettings):
    """A worker's settings that decide where its table is kept, and under which revision."""

    table: ClassVar[str] = "worker"

    head: Path | None = None
    cost_path: Path | None = None


@dataclass(frozen=True, slots=True)
class KeptTables:
    """The kept tables of one model."""

    name: str  # the model, as it is printed
    costs: Mapping[CostKey, MeasuredCosts]  # the newest for each device, revision, dtype and engine; the oldest first
    note: str  # a sentence: why there are none, or of which revisions they are; else empty

    @property
    def num_revisions(self) -> int:
        return len({key.revision for key in self.costs})


class _Wanted(NamedTuple):
    """A model, as a user has named it."""

    name: str
    keys: list[CostKey]
    fault: str  # of no keys: the end of a sentence
    remedy: str


async def tables_of(model: str, path: Path | None = None, config: Path | None = None) -> KeptTables:
    """The tables of a model.

    Args:
        model: the directory of a checkpoint selects the tables of its revision. A served name or a Hugging Face id
            selects those of all checkpoints that were served or measured under the name.
        path: their file; else that of this machine's workers, by the environment and by the configuration file.

    Raises CheckpointError if the checkpoint cannot be read.
    """
    settings = CostSettings(**({} if config is None else {"config": config}))
    path = path or settings.cost_path or default_cost_path()
    tables = CostTables(path)
    keys, names = await tables.keys(), await tables.served_names()
    known = {key: {served_name_of(key.model), *names.get(key.revision, ())} for key in keys}
    if _is_path(model):
        if (revision := _revision(Path(model), settings.head)) is None:
            return KeptTables(model, {}, f"There is no directory {model}. A served name finds its tables as well.")
        wanted = _by_revision(model, revision, settings.head, known)
    else:
        wanted = _by_name(model, known)
    kept = {key: await kept_costs(tables, key) for key in wanted.keys}
    costs = _newest({key: costs for key, costs in kept.items() if costs is not None})
    if costs:
        return KeptTables(wanted.name, costs, _revisions_note(wanted.name, costs))
    others = sorted(set().union(*[names for key, names in known.items() if key not in wanted.keys]))
    has = f" It has tables of {', '.join(others)}." if others else ""
    return KeptTables(wanted.name, {}, f"{path} has no cost table of {wanted.fault}.{has} {wanted.remedy}")


def _is_path(model: str) -> bool:
    """Whether it is no served name, and no Hugging Face id."""
    is_id = model.count("/") == 1 and not model.startswith((".", "/", "~")) and not Path(model).is_dir()
    return ("/" in model or model in (".", "..")) and not is_id


def _revision(directory: Path, head: Path | None) -> str | None:
    """The checkpoint's revision; None without such a directory."""
    from penstock.engine.model.checkpoint import revision_of  # imports torch

    return revision_of(directory, () if head is None else (head,)) if directory.is_dir() else None


def _by_revision(model: str, revision: str, head: Path | None, known: Mapping[CostKey, set[str]]) -> _Wanted:
    keys = [key for key in known if key.revision == revision]
    fault = f"{model!r}, whose revision is {revision[:REVISION_CHARS]}"
    given = f"--model {shlex.quote(model)}" + (f" --head {shlex.quote(str(head))}" if head is not None else "")
    return _Wanted(served_name_of(model), keys, fault, f"penstock calibrate {given} measures one.")


def _by_name(model: str, known: Mapping[CostKey, set[str]]) -> _Wanted:
    name = served_name_of(model)
    keys = [key for key, names in known.items() if name in names]
    remedy = f"penstock calibrate --model CHECKPOINT --served-name {shlex.quote(name)} measures one."
    return _Wanted(name, keys, repr(name), remedy)


def _newest(found: Mapping[CostKey, MeasuredCosts]) -> dict[CostKey, MeasuredCosts]:
    """Without tables of earlier versions, where there is one of a later version."""
    by_use: dict[tuple[object, ...], CostKey] = {}
    for key, costs in sorted(found.items(), key=lambda item: item[1].measured_at):
        by_use[key.device, key.revision, key.dtype, costs.table.padded] = key
    return {key: found[key] for key in sorted(by_use.values(), key=lambda key: found[key].measured_at)}


def _revisions_note(name: str, costs: Mapping[CostKey, MeasuredCosts]) -> str:
    newest = {key.revision: one.measured_at for key, one in costs.items()}
    if len(newest) == 1:
        return ""
    days = {revision: datetime.datetime.fromtimestamp(at).date() for revision, at in newest.items()}
    listed = ", ".join(f"{revision[:REVISION_CHARS]} (measured {day})" for revision, day in days.items())
    return f"{len(newest)} revisions have the name {name!r}: {listed}. The path of a checkpoint selects its own."
