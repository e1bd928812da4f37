"""Equation 2, compiled, against brute force over all partitions, and against the recurrence in plain numpy."""

import itertools
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock.scheduler
from penstock.scheduler import CostFunction, CostTable, LearnedCost, PackedCost, PaddedCost
from penstock.scheduler.policies.dp import cheapest_cuts, load_kernel
from tests.examples import examples
from tests.scheduler.many_costs import many_seconds

Floats = npt.NDArray[np.float64]
LONGEST = 12
MOST = 9  # sequences in a brute-forced instance
NO_CAP = 10**9


def any_cost(rng: random.Random) -> CostTable:
    """f(longest, count) that never falls with `longest`, and does anything at all with `count`."""
    steps = [[rng.choice((0.0, rng.random())) for _ in range(MOST)] for _ in range(LONGEST)]
    seconds = np.cumsum(np.array(steps), axis=0) + np.array([rng.random() * 5 + 1e-3 for _ in range(MOST)])
    sizes, lengths = (tuple(map(float, range(1, most + 1))) for most in (MOST, LONGEST))
    return CostTable(PaddedCost(1.0, 0.0, 0.0, 0.0), sizes, lengths, tuple(map(tuple, seconds.T.tolist())))


@dataclass(frozen=True)
class Instance:
    """Lengths in ascending order, a cost, and caps, each of which may be absent."""

    lengths: tuple[int, ...]
    cost: CostFunction
    max_sequences: int
    max_tokens: int
    max_seconds: float

    def cuts(self) -> tuple[list[int], list[float]]:
        return cheapest_cuts(
            np.array(self.lengths, dtype=np.float64),
            self.cost,
            max_sequences=self.max_sequences,
            max_tokens=self.max_tokens,
            max_seconds=self.max_seconds,
        )

    def least_s(self) -> float:
        """The least total of contiguous batches, by the recurrence in plain numpy, a row at a time."""
        lengths = np.array(self.lengths, dtype=np.float64)
        tokens, squares = (np.append(0.0, np.cumsum(lengths**power)) for power in (1, 2))
        best = np.zeros(len(lengths) + 1)
        for stop in range(1, len(best)):
            starts = np.arange(stop)
            sums = tokens[stop] - tokens[starts], squares[stop] - squares[starts]
            longest, count = lengths[stop - 1], (stop - starts).astype(np.float64)
            seconds = many_seconds(self.cost, *sums, longest, count)
            used = longest * count if self.cost.padded else sums[0]
            over = (count > self.max_sequences) | (used > self.max_tokens) | (seconds > self.max_seconds)
            best[stop] = np.min(best[starts] + np.where(over & (count > 1), np.inf, seconds))
        return float(best[-1])

    def costs(self, members: Floats) -> Floats:
        """[P]: seconds of the batches that rows of `members` [P, n] mark with ones; infinite where a cap is broken."""
        lengths = np.array(self.lengths, dtype=np.float64)
        tokens, count, longest = members @ lengths, members.sum(axis=1), (members * lengths).max(axis=1)
        seconds = many_seconds(self.cost, tokens, members @ lengths**2, longest, count)
        used = longest * count if self.cost.padded else tokens
        over = (count > self.max_sequences) | (used > self.max_tokens) | (seconds > self.max_seconds)
        costs: Floats = np.where(over & (count > 1), np.inf, seconds)
        return costs


def law(rng: random.Random, kind: type[PackedCost] | type[PaddedCost]) -> PackedCost | PaddedCost:
    return kind(rng.random() * 20, rng.random() * 20, rng.random(), rng.choice((0.0, rng.random() * 0.1)))


def rising_table(rng: random.Random) -> CostTable:
    """A padded table whose factors never fall with the length."""
    sizes = sorted(rng.sample(range(1, MOST + 2), rng.randint(1, 4)))
    lengths = sorted(rng.sample(range(1, LONGEST + 2), rng.randint(1, 4)))
    factors = [list(itertools.accumulate(rng.uniform(0.3, 1.0) for _ in lengths)) for _ in sizes]
    return CostTable(law(rng, PaddedCost), tuple(sizes), tuple(lengths), tuple(map(tuple, factors)))


def any_table(rng: random.Random, kind: type[PackedCost] | type[PaddedCost], reach: int) -> CostTable:
    sizes = sorted(rng.sample(range(1, reach), rng.randint(1, 8)))
    lengths = sorted(rng.sample(range(1, 120), rng.randint(1, 5)))
    rows = tuple(tuple(rng.uniform(0.5, 2.0) for _ in lengths) for _ in sizes)
    return CostTable(law(rng, kind), tuple(sizes), tuple(lengths), rows)


def padded_cost(rng: random.Random) -> CostFunction:
    kind = rng.randrange(5)
    if kind == 1:
        return law(rng, PaddedCost)
    if kind == 2:
        return rising_table(rng)
    if kind == 3:
        learned = LearnedCost(rising_table(rng))
        for _ in range(rng.randint(1, 5)):
            learned.observe(12, 100, 12, 2, rng.uniform(1, 100))
        return learned
    return any_cost(rng)


def random_instance(rng: random.Random, num: int) -> Instance:
    lengths = tuple(sorted(rng.randint(1, LONGEST) for _ in range(num)))
    return Instance(
        lengths,
        padded_cost(rng),
        rng.choice((NO_CAP, rng.randint(1, num))),
        rng.choice((NO_CAP, rng.randint(1, LONGEST * num))),
        rng.choice((math.inf, rng.uniform(0.5, 60))),
    )


def subsets(num: int) -> Floats:
    """[2^num - 1, num]: the members of every set but the empty one, the bits of its number."""
    members: Floats = (np.arange(1, 1 << num)[:, None] >> np.arange(num) & 1).astype(np.float64)
    return members


def cheapest_of_all(costs: Floats) -> Floats:
    """[K]: least total over every set partition, from costs [2^n - 1, K] of every set in K instances at once."""
    best = np.concatenate([np.zeros((1, costs.shape[1])), np.full(costs.shape, np.inf)])
    for whole in range(1, len(best)):
        top = 1 << (whole.bit_length() - 1)
        rest = part = whole ^ top
        while True:  # the batch that holds the last member of `whole` may be any part of the rest, with it
            np.minimum(best[whole], costs[(part | top) - 1] + best[rest ^ part], out=best[whole])
            if part == 0:
                break
            part = (part - 1) & rest
    cheapest: Floats = best[-1]
    return cheapest


def assert_sound(instance: Instance, cuts: Sequence[int], seconds: Sequence[float]) -> None:
    """Every sequence once, every batch within the caps and at its predicted seconds."""
    num = len(instance.lengths)
    assert cuts[0] == 0
    assert cuts[-1] == num
    assert list(cuts) == sorted(set(cuts))
    members = [[float(start <= index < stop) for index in range(num)] for start, stop in itertools.pairwise(cuts)]
    assert list(seconds) == pytest.approx(instance.costs(np.array(members)).tolist(), rel=1e-9, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num", "how_many"),
    [(1, 50), (2, 100), (3, 200), (4, 300), (5, 500), (6, 600), (7, 700), (8, 600), (9, 450)],
)
def test_no_set_partition_of_padded_batches_is_cheaper(num: int, how_many: int) -> None:
    """3,500 instances: contiguity in length order loses nothing, for any cost that never falls with the longest."""
    rng = random.Random(num)
    instances = [random_instance(rng, num) for _ in range(how_many)]
    members = subsets(num)
    found = []
    for instance in instances:
        cuts, seconds = instance.cuts()
        assert_sound(instance, cuts, seconds)
        found.append(sum(seconds))
    cheapest = cheapest_of_all(np.stack([instance.costs(members) for instance in instances], axis=1))
    np.testing.assert_allclose(found, cheapest, rtol=1e-9, atol=1e-12)


def long_instance(rng: random.Random, cost: CostFunction) -> Instance:
    num = rng.choice((1, 2, 127, 128, 129, rng.randint(3, 500)))
    return Instance(
        tuple(sorted(rng.randint(1, 100) for _ in range(num))),
        cost,
        rng.choice((NO_CAP, rng.randint(1, 200))),
        rng.choice((NO_CAP, rng.randint(1, 5000))),
        rng.choice((math.inf, rng.uniform(1, 1000))),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PackedCost, PaddedCost])
def test_the_compiled_costs_are_those_of_the_law_and_of_the_table(kind: type[PackedCost] | type[PaddedCost]) -> None:
    """O(nB) from the table's own cells, against the same recurrence over costs computed by the cost function."""
    rng = random.Random(3)
    for round_ in range(150):
        cost = any_table(rng, kind, 5000 if kind is PackedCost else 300) if round_ % 2 else law(rng, kind)
        instance = long_instance(rng, cost)
        cuts, seconds = instance.cuts()
        assert_sound(instance, cuts, seconds)
        assert sum(seconds) == pytest.approx(instance.least_s(), rel=1e-9)


@settings(max_examples=examples(200))
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=40).map(sorted),
    st.sampled_from((PackedCost, PaddedCost)),
    st.tuples(*[st.integers(0, 50).map(float)] * 4),
    st.integers(1, 40),
    st.integers(1, 1000),
    st.one_of(st.just(math.inf), st.integers(1, 3000).map(float)),
)
def test_the_compiled_recurrence_finds_the_same_total_with_shrinking(
    lengths: list[int],
    kind: type[PackedCost] | type[PaddedCost],
    terms: tuple[float, ...],
    max_sequences: int,
    max_tokens: int,
    max_seconds: float,
) -> None:
    instance = Instance(tuple(lengths), kind(*terms), max_sequences, max_tokens, max_seconds)
    assert sum(instance.cuts()[1]) == pytest.approx(instance.least_s(), rel=1e-9)


@pytest.mark.parametrize("cost", [PackedCost(1, 1, 1, 0), PaddedCost(1, 1, 1, 0)])
def test_an_empty_queue_has_no_batches(cost: CostFunction) -> None:
    assert Instance((), cost, 5, 5, 5.0).cuts() == ([0], [])


def test_a_cost_without_a_table_is_rejected() -> None:
    class Untabulated:
        padded = True

        def seconds(self, tokens: float, squares: float, longest: float, count: float) -> float:
            return 1.0

    with pytest.raises(TypeError, match=r"needs a cost with a table\. Given: Untabulated"):
        Instance((3, 5), Untabulated(), 5, NO_CAP, math.inf).cuts()


def test_the_kernel_was_compiled_once() -> None:
    """Another kind of array or number would be compiled for anew, for seconds, when a plan waits for it."""
    for cost in (PackedCost(1, 1, 1, 0), PaddedCost(1, 1, 1, 0), any_table(random.Random(1), PackedCost, 99)):
        Instance((3, 5), cost, 5, 5, 5.0).cuts()
    assert len(load_kernel().signatures) == 1


def run_python(code: str, **environment: str) -> str:
    """The output of a fresh interpreter, with every warning an error."""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_numba_is_loaded_on_first_use_only() -> None:
    code = "import sys, penstock.scheduler.cellular, penstock.worker, penstock.ops.cli.main\n"
    code += "from penstock.scheduler.policies.partition import PartitionPolicy\n"
    code += "PartitionPolicy('fifo')\n"
    code += "print('numba' in sys.modules)\nPartitionPolicy('dp')\nprint('numba' in sys.modules)"
    assert run_python(code).split() == ["False", "True"]


QUICK = {"NUMBA_OPT": "1", "NUMBA_CACHE_DIR": ""}  # compiled for a single plan
CUT = """
from penstock.scheduler import PaddedCost
from penstock.scheduler.policies.partition import PartitionPolicy
from penstock.scheduler.types import Caps
print(PartitionPolicy("dp").partition([5, 1, 5, 1], PaddedCost(1, 1, 1, 0), Caps(9, 99), most=9).batches)
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A place for imports whose scheduler has never run: no compiled function lies beside it."""
    package = tmp_path / "penstock" / "scheduler"
    source = Path(next(iter(penstock.scheduler.__path__)))
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(str(penstock.__file__), package.parent)
    return tmp_path


@pytest.mark.slow
def test_the_dp_runs_where_no_compiled_function_can_be_kept(installed: Path) -> None:
    """Neither beside the package nor in the user's cache folder, as in a read-only container."""
    (installed / "penstock" / "scheduler" / "policies" / "__pycache__").write_text("a file where the folder should be")
    nowhere = {"PYTHONPATH": str(installed), "HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", **QUICK}
    where = "import penstock.scheduler as s; print(s.__file__)\n"
    assert run_python(where + CUT, **nowhere).splitlines() == [
        str(installed / "penstock" / "scheduler" / "__init__.py"),
        "((1, 3), (0, 2))",
    ]


@pytest.mark.slow
def test_the_dp_runs_where_the_disk_is_full(installed: Path) -> None:
    full = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    full += "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    environment = {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1", **QUICK}
    assert run_python(full + CUT, **environment).strip() == "((1, 3), (0, 2))"


@pytest.mark.slow
def test_the_dp_runs_where_what_was_kept_is_damaged(installed: Path) -> None:
    """A process that was killed, or a disk that was full, may leave half an index or half a function."""
    environment = {"PYTHONPATH": str(installed), **QUICK}
    assert run_python(CUT, **environment).strip() == "((1, 3), (0, 2))"
    folder = installed / "penstock" / "scheduler" / "policies" / "__pycache__"
    for suffix, length in (("nbc", 60), ("nbi", 20), ("nbi", 0)):
        (kept,) = folder.glob(f"*.{suffix}")
        kept.write_bytes(kept.read_bytes()[:length])
        assert run_python(CUT, **environment).strip() == "((1, 3), (0, 2))"
