"""Kept runs: one JSON file for each whole run of a benchmark, `results/<suite>/<machine>/<UTC time>-<commit>.json`.

Writing, in a benchmark's command:

    header = begin("cpu", describe_machine())   # before anything is measured
    ...
    path = keep({**header, "parts": parts})          # adds the load after the run and the seconds it took

Reading, in a table or a plot:

    for run in current_runs("cpu", machine): run.record["parts"] ...

A run is never deleted or replaced because of its figures. Figures of a machine are those of every run of the commit
that was measured last there; `verdicts.py` judges them.
"""

import json
import math
import os
import shlex
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.machine import slug

RESULTS = Path(__file__).resolve().parent.parent / "results"
UNKNOWN = "unknown"  # the commit in a file's name where none was recorded
_SHORT = 7


@dataclass(frozen=True, slots=True)
class Run:
    """One kept run."""

    path: Path
    record: Mapping[str, Any]  # header (see `begin`), "parts", and what the suite adds

    @property
    def commit(self) -> str:
        """Short commit, with + where the checkout differed from it."""
        commit = self.record["commit"]
        return UNKNOWN if commit is None else commit[:_SHORT] + ("+" if self.record["dirty"] else "")

    @property
    def date(self) -> str:
        """ISO date of its start, UTC."""
        return str(self.record["started"])[:10]


def begin(suite: str, machine: Mapping[str, Any], *, commit: str | None = None) -> dict[str, Any]:
    """Header of a run that begins now. Call it before anything is measured.

    `machine` is that of `describe_machine`, on a GPU merged with `describe_gpu`. `commit` is for machines without a
    checkout; a + at its end says that files differed from it.
    """
    found = commit or machine.get("commit")
    return {
        "suite": suite,
        "command": " ".join([_program(), *[shlex.quote(_without_folders(argument)) for argument in sys.argv[1:]]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": found and found.removesuffix("+"),
        "dirty": found and found.endswith("+"),
        "load": {"cores": os.cpu_count(), "before": _load(), "after": None},
        "machine": {name: value for name, value in machine.items() if name != "commit"},
    }


def keep(record: Mapping[str, Any], root: Path = RESULTS) -> Path:
    """Write a run: a header, "parts" and anything else that JSON holds. Infinite figures become null.

    A run may be kept again while its parts come in: the file's name depends on its header alone.
    """
    seconds = (datetime.now(UTC) - datetime.fromisoformat(record["started"])).total_seconds()
    path: Path = root / record["suite"] / slug(record["machine"]) / f"{_stem(record)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**record, "seconds": seconds, "load": {**record["load"], "after": _load()}})
    return path


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Whole or not at all. Infinite figures, and those that are no number, become null."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(_finite(record), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def machines(suite: str, root: Path = RESULTS) -> list[str]:
    """Names of the machines that have kept runs of a suite."""
    return sorted({path.parent.name for path in root.glob(f"{suite}/*/*.json")})


def kept_runs(suite: str, machine: str, root: Path = RESULTS) -> list[Run]:
    """All runs of a suite on a machine, oldest first."""
    paths = root.glob(f"{suite}/{machine}/*.json")
    runs = [Run(path, json.loads(path.read_text(encoding="utf-8"))) for path in paths]
    return sorted(runs, key=lambda run: str(run.record["started"]))


def current_runs(suite: str, machine: str, root: Path = RESULTS, parts: Collection[str] = ()) -> list[Run]:
    """Every kept run of the commit that was measured last, oldest first. A run without a commit stands alone.

    With `parts`, only runs that have one of them count, if any has.
    """
    kept = kept_runs(suite, machine, root)
    runs = [run for run in kept if not run.record["parts"].keys().isdisjoint(parts)] or kept
    if not runs or runs[-1].commit == UNKNOWN:
        return runs[-1:]
    return [run for run in runs if run.commit == runs[-1].commit]


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _stem(record: Mapping[str, Any]) -> str:
    started = datetime.fromisoformat(record["started"]).astimezone(UTC)
    commit = record["commit"]
    name = UNKNOWN if commit is None else commit[:_SHORT] + ("-dirty" if record["dirty"] else "")
    return f"{started:%Y%m%dT%H%M%SZ}-{name}"


def _load() -> list[float]:
    return [round(load, 2) for load in os.getloadavg()]


def _without_folders(argument: str) -> str:
    """A path of this machine by its last name alone, also behind an option's `=`. `/v1`, as URLs have it, stays."""
    option, sign, value = argument.rpartition("=")
    names_folders = value.startswith("/") and len(Path(value).parts) > len(("/", "v1"))
    return f"{option}{sign}{Path(value).name}" if names_folders else argument


def _program() -> str:
    """`python -m package` of the running program, or the name of its script."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return f"python -m {spec.name.removesuffix('.__main__')}" if spec is not None else Path(sys.argv[0]).name
