"""Pages: each row reads what was written to it, however rows fork, and no page is lost."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.generation import paged_attention
from penstock.engine.generation.pages import NO_PAGE, PagePool, PageTable, pages_of
from tests.engine.generation.helpers import generate, model_of, sources

BEAMS, PAGE_SIZE, STEPS = 4, 3, 14
PARENTS = st.lists(st.lists(st.integers(0, BEAMS - 1), min_size=BEAMS, max_size=BEAMS), max_size=STEPS)


@settings(max_examples=200)
@given(PARENTS)
def test_rows_that_fork_keep_their_own_history(steps: list[list[int]]) -> None:
    """Two sequences of beams fork at every step; the memory is an array of the values that were written."""
    num_pages = 2 * BEAMS * pages_of(STEPS, PAGE_SIZE)
    pool = PagePool(num_pages + 1)
    table = PageTable(pool, 2 * BEAMS, STEPS, PAGE_SIZE)
    rows = table.open(2 * BEAMS)
    memory = np.full((num_pages + 1) * PAGE_SIZE, -1)
    histories: list[list[int]] = [[] for _ in rows]
    for step, chosen in enumerate(steps):
        values = np.arange(len(rows)) + 100 * step
        memory[table.extend(rows)] = values
        histories = [[*history, value] for history, value in zip(histories, values.tolist(), strict=True)]
        order = np.array([*chosen, *(BEAMS + beam for beam in reversed(chosen))])
        copied, into = table.reorder(rows, rows[order])
        paged = memory.reshape(-1, PAGE_SIZE)
        paged[into] = paged[copied]
        histories = [histories[parent] for parent in order]
        for row, history in zip(rows.tolist(), histories, strict=True):
            assert paged[table.pages[row]].ravel()[: table.lengths[row]].tolist() == history
    assert (memory[NO_PAGE * PAGE_SIZE : PAGE_SIZE] == -1).all()
    table.close(rows)
    assert pool.num_free == num_pages


def test_beams_share_all_but_the_last_page() -> None:
    pool = PagePool(20)
    table = PageTable(pool, BEAMS, 12, PAGE_SIZE)
    rows = table.open(BEAMS)
    for _ in range(7):
        table.extend(rows)
    table.reorder(rows, rows[[0, 0, 0, 0]])
    assert pool.num_free == 19 - (2 + BEAMS)  # two full pages, and a last page each


def test_an_extension_is_taken_back() -> None:
    pool = PagePool(9)
    table = PageTable(pool, 2, 12, PAGE_SIZE)
    rows = table.open(2)
    for _ in range(3):
        table.extend(rows)
    before = table.pages.copy(), pool.num_free
    table.extend(rows)
    table.retract(rows)
    assert np.array_equal(table.pages, before[0])
    assert (pool.num_free, table.lengths.tolist()) == (before[1], [3, 3])


def test_filled_rows_have_a_slot_for_each_position() -> None:
    pool = PagePool(9)
    table = PageTable(pool, 2, 12, PAGE_SIZE)
    rows = table.open(2)
    table.fill(rows, np.array([7, 4]))
    slots = table.slots(rows).tolist()
    of_positions = [(rows[0], i) for i in range(7)] + [(rows[1], i) for i in range(4)]
    assert [slot // PAGE_SIZE for slot in slots] == [table.pages[row, i // PAGE_SIZE] for row, i in of_positions]
    assert [slot % PAGE_SIZE for slot in slots] == [i % PAGE_SIZE for _, i in of_positions]
    assert len(set(slots)) == 11
    assert pool.num_free == 8 - 5
    table.check_integrity(rows.tolist())


@pytest.mark.parametrize("most_keys", [1, 9, 40])
def test_groups_of_any_size_attend_alike(monkeypatch: pytest.MonkeyPatch, most_keys: int) -> None:
    checkpoint, _ = model_of("t5")
    batch = sources((1, 9, 9, 24, 4, 9, 24))
    together = generate(checkpoint, batch, max_new_tokens=20)
    monkeypatch.setattr(paged_attention, "_MOST_KEYS", most_keys)
    assert generate(checkpoint, batch, max_new_tokens=20) == together
