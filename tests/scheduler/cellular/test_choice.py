"""How long a quantum is, and what a task is predicted to take."""

import math

import pytest

from penstock.scheduler.cellular import CellRule
from penstock.scheduler.cellular.choice import choose_cell, choose_quantum
from penstock.scheduler.cellular.cost import TaskCost

RULE = CellRule("lstm", 512, max_steps=8)


@pytest.mark.parametrize(("num_rows", "quantum"), [(1, 1), (64, 1), (128, 2), (200, 4), (256, 4), (300, 8), (512, 8)])
def test_a_quantum_grows_with_the_load(num_rows: int, quantum: int) -> None:
    assert choose_quantum(RULE, num_rows, 0.0, 0.0) == quantum


@pytest.mark.parametrize(("step_s", "quantum"), [(1e-3, 1), (30e-6, 2), (10e-6, 8), (1e-6, 8), (0.0, 1)])
def test_a_quantum_takes_as_long_as_the_host_needs_for_the_next(step_s: float, quantum: int) -> None:
    assert choose_quantum(RULE, 1, step_s, 50e-6) == quantum


def test_the_longest_quantum_may_be_any_number() -> None:
    assert choose_quantum(RULE._replace(max_steps=6), 512, 0.0, 0.0) == 6


@pytest.mark.parametrize(
    ("host_s", "quantum"), [(0.0, 8), (100e-6, 8), (150e-6, 12), (190e-6, 16), (400e-6, 28), (1.0, 32)]
)
def test_a_quantum_of_more_than_eight_steps_hides_the_host(host_s: float, quantum: int) -> None:
    assert choose_quantum(RULE._replace(max_steps=32), 512, 15e-6, host_s) == quantum


def test_a_step_costs_least_in_a_long_quantum() -> None:
    cost = TaskCost()
    assert cost.step_s(0, 64) == 0
    cost.observe(0, 64, 1, 40e-6)
    assert cost.step_s(0, 64) == 40e-6
    cost.observe(0, 64, 8, 160e-6)
    assert cost.step_s(0, 50) == 20e-6


def test_full_cells_go_first_then_idle_ones_then_any() -> None:
    rules = [CellRule("a", 4), CellRule("b", 4), CellRule("c", 4, priority=1)]
    none = [0, 0, 0]
    assert choose_cell(rules, [4, 4, 3], none, [0, 0, 1], [0, 1, 0]) == 1
    assert choose_cell(rules, [1, 3, 3], none, [0, 1, 1], none) == 0
    assert choose_cell(rules, [1, 3, 3], none, [1, 1, 1], none) == 2
    assert choose_cell(rules, [0, 1, 0], [0, 9, 9], [0, 1, 0], none) == 1
    assert choose_cell(rules, none, [0, 9, 0], [0, 1, 0], none) == 1
    assert choose_cell(rules, none, none, none, [0, 99, 0]) is None


def test_a_prediction_is_the_mean_of_what_was_measured() -> None:
    cost = TaskCost()
    assert cost.seconds(0, 64, 4) == 0
    cost.observe(0, 64, 4, 4e-4)
    assert cost.seconds(0, 40, 4) == 4e-4
    for _ in range(40):
        cost.observe(0, 64, 4, 8e-4)
    assert cost.seconds(0, 64, 4) == pytest.approx(8e-4, rel=0.01)


def test_what_was_not_measured_is_estimated_from_the_nearest_of_the_cell() -> None:
    cost = TaskCost()
    cost.observe(0, 64, 4, 4e-4)
    assert cost.seconds(0, 64, 1) == pytest.approx(1e-4)
    assert cost.seconds(1, 64, 1) == 0
    cost.observe(0, 64, 1, 2e-4)
    assert cost.seconds(0, 64, 1) == 2e-4
    assert cost.seconds(0, 512, 8) == pytest.approx(8e-4)


def test_an_estimate_follows_the_times_from_which_it_was_made() -> None:
    cost = TaskCost()
    cost.observe(0, 1, 1, 1.0)  # the first task was cold
    assert cost.seconds(0, 512, 8) == 8.0
    for _ in range(60):
        cost.observe(0, 1, 1, 1e-3)
    assert cost.seconds(0, 512, 8) == pytest.approx(8e-3, rel=0.01)


def test_an_outlier_changes_little_and_no_time_changes_nothing() -> None:
    cost = TaskCost()
    cost.observe(0, 64, 1, 1e-3)
    for measured_s in (0.0, -1.0, math.nan, math.inf):
        cost.observe(0, 64, 1, measured_s)
    assert cost.seconds(0, 64, 1) == 1e-3
    cost.observe(0, 64, 1, 1e3)
    assert cost.seconds(0, 64, 1) == pytest.approx(1.6e-3)
