"""Results of a search on the device, by a request's row."""

from penstock.engine.generation.selection import Choice
from penstock.engine.gpu.generation.search_state import FINISHED, INVALID, RUNNING


def greedy_choice(row: list[int]) -> Choice:
    """By a row of results: the status, then the tokens that were added; -1 for none."""
    status = row[0]
    if status == RUNNING:  # each step has added a token
        return Choice(tuple(row[1:]), False, None, None, False, len(row) - 1)
    tokens = tuple(token for token in row[1:] if token >= 0)
    is_invalid = status == INVALID  # by a step that has added no token
    return Choice(tokens, is_finished=True, is_invalid=is_invalid, steps=len(tokens) + is_invalid)


def choice_of_beams(row: list[int]) -> Choice:
    """By a row of results: the status, the steps that ran, the length of the best that has ended, and its tokens."""
    status, steps, length = row[:3]
    tokens = tuple(row[3 : 3 + length]) if status == FINISHED else ()
    return Choice(tokens, is_finished=status != RUNNING, is_invalid=status == INVALID, steps=steps)
