"""The compiled scanner of line_columns.py, which imports it on first use: numba takes half a second to load.

It goes over each line once, and compares the parts that all lines share in words of eight bytes. A JSON parser takes
about ten times as long. It accepts nothing that a JSON parser rejects, and reads no value otherwise. All of it is in
one file, because numba's cache notices changes of the file of `scan` only.
"""

from typing import cast

import numpy as np
import numpy.typing as npt
from numba import njit
from numba.core.dispatcher import Dispatcher

ByteArray = npt.NDArray[np.uint8]
WordArray = npt.NDArray[np.uint64]
IntArray = npt.NDArray[np.int64]

SKIP, INTEGER, NUMBER, TIME, TEXT, NOTHING = range(6)  # kinds of values; NOTHING: the key's bytes hold the value too
MAX_TEXTS = 64  # different ones in a block
WORD = 8  # bytes

_FAILED = -1
_NEWLINE, _RETURN, _QUOTE, _BACKSLASH, _BRACE, _SPACE = (ord(one) for one in '\n\r"\\} ')
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _EXPONENT, _CAPITAL = (ord(one) for one in "-+.09eE")
_DASH, _Z, _T, _COLON, _LOW_T, _LOW_F, _LOW_N = (ord(one) for one in "-ZT:tfn")
_MAX_DIGITS = 15  # of an integer; a float holds it
_MAX_KEPT = 10**17  # digits beyond do not change a float
_MAX_POWER = 308
_POWERS = np.array([float(f"1e{power}") for power in range(_MAX_POWER + 1)])
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(WORD + 1)], np.uint64)  # the first bytes of a word
_NEWLINES, _QUOTES, _BACKSLASHES, _SPACES, _ONES, _HIGHS = (  # a byte eight times
    np.uint64(one * 0x0101010101010101) for one in (_NEWLINE, _QUOTE, _BACKSLASH, _SPACE, 1, 0x80)
)
_TRUE, _FALSE, _NULL = (np.uint64(int.from_bytes(one, "little")) for one in (b"true", b"fals", b"null"))


def _compiled(function: object) -> Dispatcher:
    """Compile a function, and keep it for the next process where there is a place to write."""
    try:
        return cast(Dispatcher, njit(nogil=True, cache=True)(function))
    except RuntimeError:  # neither beside this file nor in the user's cache folder
        return cast(Dispatcher, njit(nogil=True)(function))


def _inlined(function: object) -> Dispatcher:
    """Compile a function into its callers: a call would cost as much as its work."""
    return cast(Dispatcher, njit(nogil=True, forceinline=True)(function))


def words_of(data: bytes) -> WordArray:
    """The eight bytes from each place on, [bytes - 7], little-endian. A view."""
    return np.ndarray((max(0, len(data) - WORD + 1),), "<u8", data, 0, (1,))


@_inlined
def byte(data: ByteArray, place: int) -> int:
    """A byte. An index without a sign cannot count from the end, which saves the test for it: a third of the time."""
    return data[np.uintp(place)]  # type: ignore[no-any-return]  # numba has no cast


@_inlined
def word(words: WordArray, place: int) -> np.uint64:
    """The eight bytes from a place on. The caller knows that they are there."""
    return words[np.uintp(place)]  # type: ignore[no-any-return]  # of numba


@_inlined
def is_digit(block: ByteArray, place: int, end: int) -> bool:
    """Whether a digit is here."""
    return place < end and _ZERO <= byte(block, place) <= _NINE


@_inlined
def scan_text(block: ByteArray, words: WordArray, place: int, end: int) -> int:
    """The place after a string without escapes, which begins here."""
    if place >= end or byte(block, place) != _QUOTE:
        return _FAILED
    place += 1
    while place + WORD <= end:
        eight = word(words, place)
        quote, backslash = eight ^ _QUOTES, eight ^ _BACKSLASHES
        # The highest bit of each byte that is less than a space, or that is zero after the comparison.
        ends = ((eight - _SPACES) & ~eight) | ((quote - _ONES) & ~quote) | ((backslash - _ONES) & ~backslash)
        if ends & _HIGHS:
            break
        place += WORD
    while place < end:
        one = byte(block, place)
        if one == _QUOTE:
            return place + 1
        if one == _BACKSLASH or one < _SPACE:
            return _FAILED
        place += 1
    return _FAILED


@_inlined
def scan_integer(block: ByteArray, place: int, end: int) -> tuple[int, int]:
    """The place after an integer without a sign, and its value."""
    first, value = place, 0
    while is_digit(block, place, end):
        value = value * 10 + byte(block, place) - _ZERO
        place += 1
    if not 1 <= place - first <= _MAX_DIGITS or (byte(block, first) == _ZERO and place - first > 1):
        return _FAILED, 0
    return place, value


@_inlined
def scan_exponent(block: ByteArray, place: int, end: int) -> tuple[int, int]:
    """The place after an exponent, if one is here, and its value."""
    if place >= end or (byte(block, place) != _EXPONENT and byte(block, place) != _CAPITAL):
        return place, 0
    place += 1
    is_negative = place < end and byte(block, place) == _MINUS
    if is_negative or (place < end and byte(block, place) == _PLUS):
        place += 1
    first, exponent = place, 0
    while is_digit(block, place, end) and place - first < 3:
        exponent = exponent * 10 + byte(block, place) - _ZERO
        place += 1
    return (_FAILED if place == first else place), (-exponent if is_negative else exponent)


@_inlined
def scan_number(block: ByteArray, place: int, end: int) -> tuple[int, float]:
    """The place after a finite number, and its value. Up to 15 digits are exact."""
    is_negative = place < end and byte(block, place) == _MINUS
    place += is_negative
    first, value, shift = place, 0, 0
    while is_digit(block, place, end):
        if value < _MAX_KEPT:
            value = value * 10 + byte(block, place) - _ZERO
        else:
            shift += 1
        place += 1
    if place == first or (byte(block, first) == _ZERO and place - first > 1):
        return _FAILED, 0.0
    if place < end and byte(block, place) == _POINT:
        place += 1
        first = place
        while is_digit(block, place, end):
            if value < _MAX_KEPT:
                value = value * 10 + byte(block, place) - _ZERO
                shift -= 1
            place += 1
        if place == first:
            return _FAILED, 0.0
    place, exponent = scan_exponent(block, place, end)
    shift += exponent
    number = -float(value) if is_negative else float(value)
    if shift < -_MAX_POWER:
        number /= _POWERS[_MAX_POWER]
        shift += _MAX_POWER
    if abs(shift) > _MAX_POWER:
        return _FAILED, 0.0
    number = number * _POWERS[shift] if shift >= 0 else number / _POWERS[-shift]
    return (place if np.isfinite(number) else _FAILED), number


@_inlined
def scan_digits(block: ByteArray, place: int, count: int) -> int:
    """The number in `count` digits; a large negative number if a byte is no digit."""
    value = 0
    for at in range(place, place + count):
        if not _ZERO <= byte(block, at) <= _NINE:
            return -1_000_000
        value = value * 10 + byte(block, at) - _ZERO
    return value


@_inlined
def scan_minute(block: ByteArray, place: int) -> float:
    """The seconds since 1970 of `"2026-01-31T12:34`, of which all bytes are there. Negative if it is no UTC time."""
    if byte(block, place) != _QUOTE or byte(block, place + 5) != _DASH or byte(block, place + 8) != _DASH:
        return -1.0
    if byte(block, place + 11) != _T or byte(block, place + 14) != _COLON:
        return -1.0
    year, month = scan_digits(block, place + 1, 4), scan_digits(block, place + 6, 2)
    day, hour = scan_digits(block, place + 9, 2), scan_digits(block, place + 12, 2)
    minute = scan_digits(block, place + 15, 2)
    if year < 1970 or not 1 <= month <= 12 or day < 1 or not 0 <= hour < 24 or not 0 <= minute < 60:
        return -1.0
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > (28 + is_leap if month == 2 else 30 + (month + month // 8) % 2):
        return -1.0
    # Days from the civil date, as Howard Hinnant's chrono-compatible algorithms count them.
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468
    return days * 86400.0 + hour * 3600.0 + minute * 60.0  # type: ignore[no-any-return]  # of numba


@_inlined
def scan_seconds(block: ByteArray, place: int, end: int) -> tuple[int, int]:
    """The place after `:56.789Z"`, and its whole seconds."""
    if place + 5 > end or byte(block, place) != _COLON:
        return _FAILED, 0
    seconds = scan_digits(block, place + 1, 2)
    place += 3
    if byte(block, place) == _POINT:
        place += 1
        first = place
        while is_digit(block, place, end):
            place += 1
        if place == first:
            return _FAILED, 0
    if place + 1 >= end or byte(block, place) != _Z or byte(block, place + 1) != _QUOTE or not 0 <= seconds < 60:
        return _FAILED, 0
    return place + 2, seconds


@_inlined
def find_text(block: ByteArray, words: WordArray, first: int, last: int, texts: IntArray, num_texts: int) -> int:
    """The number of a text among those before it; `num_texts` if it is new. A word after the text is in the block."""
    size = last - first
    mask = _MASKS[min(size, WORD)]
    head = word(words, first) & mask
    for number in range(num_texts):
        start = texts[number, 0]
        if texts[number, 1] - start != size or word(words, start) & mask != head:
            continue
        at = WORD
        while at < size and byte(block, start + at) == byte(block, first + at):
            at += 1
        if at >= size:
            return number
    return num_texts


@_inlined
def skip(block: ByteArray, words: WordArray, place: int, end: int) -> int:
    """The place after a string without escapes, a number or a literal."""
    if place + WORD > end:
        return _FAILED
    first = byte(block, place)
    if first == _QUOTE:
        return scan_text(block, words, place, end)  # type: ignore[no-any-return]  # of numba
    if first in (_LOW_T, _LOW_F, _LOW_N):
        found = word(words, place) & _MASKS[4]
        if found == _FALSE and byte(block, place + 4) == _EXPONENT:
            return place + 5
        return place + 4 if found in (_TRUE, _NULL) else _FAILED
    return scan_number(block, place, end)[0]  # type: ignore[no-any-return]  # of numba


@_inlined
def find_newline(block: ByteArray, words: WordArray, place: int, end: int) -> int:
    """The place of the next newline; the end without one."""
    while place + WORD <= end:
        differs = word(words, place) ^ _NEWLINES
        if (differs - _ONES) & ~differs & _HIGHS:  # one of the bytes is zero
            break
        place += WORD
    while place < end and byte(block, place) != _NEWLINE:
        place += 1
    return place


@_inlined
def match(
    block: ByteArray,
    words: WordArray,
    place: int,
    first_field: int,
    after_fields: int,
    key: int,
    keys: WordArray,
    key_masks: WordArray,
    key_sizes: IntArray,
    kinds: IntArray,
    columns: npt.NDArray[np.float64],
    row: int,
    texts: IntArray,
    state: IntArray,
) -> int:
    """The place after the last of the fields, whose values are then in their columns.

    `key`: the first word of their keys. `state` has the number of texts, and where the first 17 bytes of the last time
    are and their seconds.
    """
    size = len(block)
    for field in range(first_field, after_fields):
        end = place + key_sizes[field]
        if end + WORD > size:
            return _FAILED
        while place < end:
            if word(words, place) & key_masks[np.uintp(key)] != keys[np.uintp(key)]:
                return _FAILED
            place += WORD
            key += 1
        place = end
        kind = kinds[field]
        if kind == INTEGER:
            place, integer = scan_integer(block, place, size)
            columns[field, row] = integer
        elif kind == NUMBER:
            place, columns[field, row] = scan_number(block, place, size)
        elif kind == TEXT:
            first = place + 1
            place = scan_text(block, words, place, size)
            if place == _FAILED or place + WORD > size:
                return _FAILED
            number = find_text(block, words, first, place - 1, texts, state[0])
            if number == MAX_TEXTS:
                return _FAILED
            if number == state[0]:
                texts[number, 0], texts[number, 1] = first, place - 1
                state[0] += 1
            columns[field, row] = number
        elif kind == TIME:
            if place + 22 > size:
                return _FAILED
            known = state[1]
            is_same = known >= 0 and byte(block, place + 16) == byte(block, known + 16)
            is_same = is_same and word(words, place) == word(words, known)
            if not is_same or word(words, place + WORD) != word(words, known + WORD):
                minute_s = scan_minute(block, place)
                if minute_s < 0:
                    return _FAILED
                state[1], state[2] = place, int(minute_s)
            place, seconds = scan_seconds(block, place + 17, size)
            columns[field, row] = state[2] + seconds
        elif kind == SKIP:
            place = skip(block, words, place, size)
        if place == _FAILED:
            return _FAILED
    return place


@_inlined
def end_of_line(block: ByteArray, place: int) -> int:
    """The place of the newline, or of the block's end, after an object of which only the brace is left."""
    size = len(block)
    if place == _FAILED or place >= size or byte(block, place) != _BRACE:
        return _FAILED
    place += 1
    if place < size and byte(block, place) == _RETURN:
        place += 1
    return place if place >= size or byte(block, place) == _NEWLINE else _FAILED


@_compiled
def scan(
    block: ByteArray,
    words: WordArray,
    first_fields: IntArray,
    first_words: IntArray,
    keys: WordArray,
    key_masks: WordArray,
    key_sizes: IntArray,
    kinds: IntArray,
    columns: npt.NDArray[np.float64],
    texts: IntArray,
    places: IntArray,
    num_rows: IntArray,
    others: IntArray,
) -> tuple[int, int]:
    """Go over all lines. Returns the numbers of texts and of other lines.

    `first_fields` [layouts + 1] and `first_words` [layouts]: where each layout begins among the fields and the words.
    `keys`, `key_masks`: the bytes before each value, in words, of which the last has a mask; `key_sizes` [fields] in
    bytes; `kinds` [fields]. Results: `columns` [fields, lines] numbers, seconds and numbers of texts;
    `texts` [MAX_TEXTS, 2] the place at which each text came first; `places` [layouts, lines, 2] the place of each row;
    `num_rows` [layouts] their number; `others` [lines, 2] the places of lines of no layout. Empty lines are left out.
    """
    num_others, num_layouts = 0, len(first_words)
    state = np.array([0, -1, 0])
    start, size, layout = 0, len(block), 0
    while start < size:
        end = _FAILED
        for _ in range(num_layouts):  # that of the line before is the first to be tried
            row, key, field, after = (
                num_rows[layout],
                first_words[layout],
                first_fields[layout],
                first_fields[layout + 1],
            )
            place = match(  # numba takes no starred arguments
                block, words, start, field, after, key, keys, key_masks, key_sizes, kinds, columns, row, texts, state
            )
            end = end_of_line(block, place)
            if end != _FAILED:
                places[layout, row, 0], places[layout, row, 1] = start, end
                num_rows[layout] += 1
                break
            layout = layout + 1 if layout + 1 < num_layouts else 0
        if end == _FAILED:
            end = find_newline(block, words, start, size)
            if end > start:
                others[num_others, 0], others[num_others, 1] = start, end
                num_others += 1
        start = end + 1
    return state[0], num_others
