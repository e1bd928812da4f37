"""The compiled scanner of batch_columns.py, which imports it on first use: numba takes half a second to load.

It goes over each byte once. A JSON parser takes about ten times as long.
"""

from typing import cast

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.core.dispatcher import Dispatcher

ByteArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]

SKIP, NUMBER, TIME, TEXT, NOTHING = range(5)  # kinds of values; NOTHING: the key's bytes hold the value too
MAX_TEXTS = 64  # different ones in a block

_FAILED = -1
_NEWLINE, _RETURN, _QUOTE, _BACKSLASH, _COMMA, _BRACE = (ord(one) for one in '\n\r"\\,}')
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _EXPONENT, _CAPITAL = (ord(one) for one in "-+.09eE")
_Z, _T, _COLON = (ord(one) for one in "ZT:")


def _compiled(function: object) -> Dispatcher:
    """Compile a function, and keep it for the next process where there is a place to write."""
    try:
        return cast(Dispatcher, njit(nogil=True, cache=True)(function))
    except RuntimeError:  # neither beside this file nor in the user's cache folder
        return cast(Dispatcher, njit(nogil=True)(function))


@_compiled
def byte(data: ByteArray, place: int) -> int:
    """A byte. An index without a sign cannot count from the end, which saves the test for it: a third of the time."""
    return data[np.uintp(place)]  # type: ignore[no-any-return]  # numba has no cast


@_compiled
def scan_text(block: ByteArray, place: int, end: int) -> int:
    """The place after a string without escapes, which begins here."""
    if place >= end or byte(block, place) != _QUOTE:
        return _FAILED
    place += 1
    while place < end and byte(block, place) != _QUOTE:
        if byte(block, place) == _BACKSLASH:
            return _FAILED
        place += 1
    return place + 1 if place < end else _FAILED


@_compiled
def scan_number(block: ByteArray, place: int, end: int) -> tuple[int, float]:
    """The place after a number, and its value. Up to 15 digits are exact."""
    sign = 1.0
    if place < end and byte(block, place) == _MINUS:
        sign = -1.0
        place += 1
    value, digits, decimals = 0.0, 0, 0
    is_behind_point = False
    while place < end:
        digit = byte(block, place)
        if _ZERO <= digit <= _NINE:
            value = value * 10.0 + (digit - _ZERO)
            digits += 1
            decimals += is_behind_point
        elif digit == _POINT and not is_behind_point:
            is_behind_point = True
        else:
            break
        place += 1
    if digits == 0 or digits > 300:
        return _FAILED, 0.0
    exponent = 0
    if place < end and (byte(block, place) == _EXPONENT or byte(block, place) == _CAPITAL):
        place += 1
        is_negative = place < end and byte(block, place) == _MINUS
        if place < end and (byte(block, place) == _MINUS or byte(block, place) == _PLUS):
            place += 1
        first = place
        while place < end and _ZERO <= byte(block, place) <= _NINE and place - first < 3:
            exponent = exponent * 10 + byte(block, place) - _ZERO
            place += 1
        if place == first:
            return _FAILED, 0.0
        exponent = -exponent if is_negative else exponent
    shift = exponent - decimals
    return place, sign * (value * 10.0**shift if shift >= 0 else value / 10.0 ** (-shift))


@_compiled
def scan_digits(block: ByteArray, place: int, count: int) -> int:
    """The number of so many digits; a large negative number if one is none."""
    value = 0
    for at in range(place, place + count):
        if not _ZERO <= byte(block, at) <= _NINE:
            return -1_000_000
        value = value * 10 + byte(block, at) - _ZERO
    return value


@_compiled
def scan_time(block: ByteArray, place: int, end: int) -> tuple[int, float]:
    """The place after a UTC timestamp in quotes, and its whole seconds since 1970."""
    if (
        place + 22 > end
        or byte(block, place) != _QUOTE
        or byte(block, place + 11) != _T
        or byte(block, place + 14) != _COLON
    ):
        return _FAILED, 0.0
    year, month = scan_digits(block, place + 1, 4), scan_digits(block, place + 6, 2)
    day, hour = scan_digits(block, place + 9, 2), scan_digits(block, place + 12, 2)
    minute, second = scan_digits(block, place + 15, 2), scan_digits(block, place + 18, 2)
    if min(year, month, day, hour, minute, second) < 0 or not 1 <= month <= 12:
        return _FAILED, 0.0
    place += 20
    while place < end and (byte(block, place) == _POINT or _ZERO <= byte(block, place) <= _NINE):
        place += 1
    if place + 1 >= end or byte(block, place) != _Z or byte(block, place + 1) != _QUOTE:
        return _FAILED, 0.0
    # Days from the civil date, as Howard Hinnant's chrono-compatible algorithms count them.
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
    return place + 2, days * 86400.0 + hour * 3600.0 + minute * 60.0 + second


@_compiled
def find_text(block: ByteArray, first: int, last: int, texts: IntArray, num_texts: int) -> int:
    """The number of a text among those before it; `num_texts` if it is new."""
    for number in range(num_texts):
        start = texts[number, 0]
        if texts[number, 1] - start != last - first:
            continue
        at = 0
        while at < last - first and byte(block, start + at) == byte(block, first + at):
            at += 1
        if at == last - first:
            return number
    return num_texts


@_compiled
def scan(
    block: ByteArray,
    keys: ByteArray,
    key_ends: IntArray,
    kinds: IntArray,
    rows: npt.NDArray[np.float64],
    texts: IntArray,
    others: IntArray,
) -> tuple[int, int, int]:
    """Go over all lines. Returns the numbers of rows, of texts and of other lines.

    `keys`: the bytes before each value, one after another; `key_ends` [fields]; `kinds` [fields].
    `rows` [lines, fields] gets numbers, seconds and numbers of texts; `texts` [MAX_TEXTS, 2] where each text first was;
    `others` [lines, 2] where lines are that are laid out otherwise. Empty lines are in neither.
    """
    num_rows, num_texts, num_others = 0, 0, 0
    start, size = 0, len(block)
    while start < size:
        end = start
        place, begin = start, 0
        for field in range(len(kinds)):
            for at in range(begin, key_ends[field]):
                if place >= size or byte(block, place) != byte(keys, at):
                    place = _FAILED
                    break
                place += 1
            begin = key_ends[field]
            if place == _FAILED:
                break
            kind = kinds[field]
            if kind == NUMBER:
                place, rows[num_rows, field] = scan_number(block, place, size)
            elif kind == TIME:
                place, rows[num_rows, field] = scan_time(block, place, size)
            elif kind == TEXT:
                first = place + 1
                place = scan_text(block, place, size)
                if place != _FAILED:
                    number = find_text(block, first, place - 1, texts, num_texts)
                    if number == num_texts and num_texts < MAX_TEXTS:
                        texts[number, 0], texts[number, 1] = first, place - 1
                        num_texts += 1
                    rows[num_rows, field] = number
                    if number == MAX_TEXTS:
                        place = _FAILED
            elif kind == SKIP:
                if place < size and byte(block, place) == _QUOTE:
                    place = scan_text(block, place, size)
                else:
                    while place < size and byte(block, place) != _COMMA and byte(block, place) != _BRACE:
                        if byte(block, place) == _NEWLINE:
                            break
                        place += 1
            if place == _FAILED:
                break
        if place != _FAILED and place < size and byte(block, place) == _BRACE:
            place += 1
            if place < size and byte(block, place) == _RETURN:
                place += 1
            if place >= size or byte(block, place) == _NEWLINE:
                num_rows += 1
                start = place + 1
                continue
        while end < size and byte(block, end) != _NEWLINE:
            end += 1
        if end > start:
            others[num_others, 0], others[num_others, 1] = start, end
            num_others += 1
        start = end + 1
    return num_rows, num_texts, num_others
