"""Find where rows of CSV end, by the rule of Arrow's parser.

A quote begins a quoted value only where a value begins; within an unquoted value it is a letter, as in `5" pipe`. Within a
quoted value two quotes are one letter, and a single one ends the quoting. Newlines, returns, and both together end rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_QUOTE, _NEWLINE, _RETURN = ord('"'), ord("\n"), ord("\r")
_BOTH = int.from_bytes(b"\r\n", "little")
_TAIL_NBYTES = 1 << 16  # of a block, in which the last row mostly ends

Letters = NDArray[np.uint8]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Quotes:
    """The quotes of a text after which it is within a quoted value, or no longer is."""

    places: Places  # (n,)
    is_open: NDArray[np.bool_]  # (n,) whether the quote is the first of a quoted value

    def are_around(self, places: Places) -> NDArray[np.bool_]:
        """Return whether these bytes, none of which is a quote, are within quoted values."""
        return np.append(False, self.is_open)[np.searchsorted(self.places, places)]


def quotes_of(letters: Letters, delimiter: str) -> Quotes:
    """Return the quotes of a text that begins outside of quoted values."""
    places, begins = _odd_runs(letters, delimiter)
    num_begun = np.cumsum(begins)
    num_before = np.maximum.accumulate(np.where(begins, 0, num_begun))  # up to the last quote that surely ended a value
    return Quotes(places, np.equal((num_begun - num_before) % 2, 1))


def _odd_runs(letters: Letters, delimiter: str) -> tuple[Places, NDArray[np.bool_]]:
    """Return (n,) where runs of an odd number of quotes begin, and (n,) whether a value may begin there.

    Where one may, the run begins a quoted value or ends the one that is open; anywhere else there is no open one after it.
    Runs of an even number change nothing.
    """
    quotes = np.flatnonzero(letters == _QUOTE)
    firsts = np.flatnonzero(np.diff(quotes, prepend=-2) > 1)
    places = quotes[firsts[np.diff(firsts, append=len(quotes)) % 2 == 1]]
    before = letters[places - 1]
    return places, (places == 0) | (before == ord(delimiter)) | (before == _NEWLINE) | (before == _RETURN)


def line_ends(letters: Letters) -> Places:
    """Return (n,) where lines end, within quoted values too. A return at the very end of a text ends one."""
    is_end = letters == _NEWLINE
    returns = np.flatnonzero(letters == _RETURN)
    is_end[returns[~is_end[np.minimum(returns + 1, len(letters) - 1)]]] = True  # those that no newline follows
    return np.flatnonzero(is_end) + 1


def row_ends(letters: Letters, delimiter: str) -> Places:
    """Return (n,) where rows end in a text that begins outside of quoted values."""
    ends = line_ends(letters)
    return ends[~quotes_of(letters, delimiter).are_around(ends - 1)]


def last_row_end(data: bytes, delimiter: str) -> int:
    """Return where the last whole row of a text ends that begins outside of quoted values; 0 if none does.

    A return at the very end does not count: a newline may follow.
    """
    if b'"' not in data:
        return data.rfind(b"\n") + 1 or data.rfind(b"\r", 0, len(data) - 1) + 1
    letters = np.frombuffer(data, np.uint8)
    most = len(data) - data.endswith(b"\r")
    for start in (_outside_from(letters, delimiter), 0):
        ends = row_ends(letters[start:], delimiter) + start
        if len(ends := ends[ends <= most]):
            return int(ends[-1])
    return 0


def open_quote(data: bytes, delimiter: str) -> int | None:
    """Return where the quoted value begins that a text ends in; None if it ends outside of quoted values, as it begins."""
    letters = np.frombuffer(data, np.uint8)
    start = _outside_from(letters, delimiter)
    quotes = quotes_of(letters[start:], delimiter)
    return start + int(quotes.places[-1]) if len(quotes.places) and quotes.is_open[-1] else None


def _outside_from(letters: Letters, delimiter: str) -> int:
    """Return a place near the end of a text that is outside of quoted values, whatever comes before it; else its beginning."""
    start = max(0, len(letters) - _TAIL_NBYTES)
    places, begins = _odd_runs(letters[start:], delimiter)
    sure = places[~begins & (places > 0)]  # at 0, the byte before is not in sight
    return start + int(sure[0]) + 1 if len(sure) else 0


def num_lines(data: bytes, stop: int) -> int:
    """Return how many lines end in the first bytes of a text, a return that no newline follows ending one too."""
    letters = np.frombuffer(data, np.uint8)[:stop]
    num = int(np.count_nonzero(letters == _NEWLINE))
    if b"\r" not in data:
        return num
    pairs = (letters[at : at + (stop - at) // 2 * 2].view("<u2") for at in (0, 1))
    return num + int(np.count_nonzero(letters == _RETURN)) - sum(int(np.count_nonzero(two == _BOTH)) for two in pairs)
