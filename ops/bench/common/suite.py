"""A suite of benchmarks as a declaration: its parts, what they share, its options and its tables. See `runner.py`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.tables import Table


@dataclass(frozen=True, slots=True)
class Part:
    """`function`(bench, *arguments) returns the figures of the part, ready for JSON."""

    function: str  # module:function
    budget_s: float  # expected; the part is stopped at three times that
    arguments: Sequence[Any] = ()  # as JSON has them
    needs: str = ""  # an option without which the part is left out


@dataclass(frozen=True, slots=True)
class Option:
    """`--name` of a suite's command. The suite's bench gets its value, as JSON has it."""

    name: str
    default: Any
    help: str
    type: Callable[[str], Any] = str
    choices: Sequence[Any] | None = None


SCALE = Option("scale", 1.0, "measured seconds and requests, as a share of the usual", float)
DEVICE = Option("device", "cuda", "cpu: times mean nothing there", choices=("cuda", "cpu"))
SEED = Option("seed", 2026, "of all that is drawn", int)


@dataclass(frozen=True, slots=True)
class BenchSuite:
    """Parts run in their order. One that fails costs its own figures alone."""

    name: str  # of its folder of kept runs
    about: str  # one sentence, for `--help`
    bench: str  # module:class, a `PartBench`, which the parts share
    tables: str  # module:name of its tables by name
    parts: Mapping[str, Part]
    time_limit_s: float
    options: Sequence[Option] = ()
    cores: int | None = None  # that the run may use; None: all
    is_kept: bool = True  # a whole run, where no folder is given

    def shown(self, run: Run) -> str:
        """All tables of one run."""
        tables = [one for one in named(self.tables).values() if isinstance(one, Table)]
        return "\n\n".join(filter(None, (table.of_runs([run]) for table in tables)))


def numbers(listed: str) -> list[int]:
    """Of an option: whole numbers above 0, separated by commas. Raises ValueError for others."""
    found = [int(number) for number in listed.split(",")]
    if min(found) < 1:
        raise ValueError(f"Numbers are to be above 0. Given: {listed}")
    return found


def named(target: str) -> Any:
    """The object that "module:name" names. Imported when it is needed: torch takes seconds."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)
