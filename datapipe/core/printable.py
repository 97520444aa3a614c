"""Make text that may hold file names safe for a terminal or a log.

A file's name may hold any bytes but NUL and the slash: escape sequences for a terminal, line ends that forge a line,
bytes that are not UTF-8. Messages pass through here where they become text: an error in `str()`, a record in its logger,
a line of a command when it is printed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import TextIO


def printable(text: str) -> str:
    r"""Return `text` as one line in which unprintable characters, and bytes that are not UTF-8, are escapes such as `\x1b`.

    Printable characters stay, backslashes included, so that nothing changes when a message is put into another one.
    """
    return text if text.isprintable() else "".join(one if one.isprintable() else _escape(ord(one)) for one in text)


def counted(num: int, noun: str) -> str:
    """Return a number with its noun, such as `1 shard`, `2 classes` or `1,200 shards`."""
    plural = "" if num == 1 else "es" if noun.endswith(("s", "x", "tch")) else "s"
    return f"{num:,} {noun}{plural}"


def size_text(nbytes: int) -> str:
    """Return a number of bytes in MB or GB."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


def listed(texts: Sequence[str], *, most: int = 12, separator: str = ", ") -> str:
    """Return the first of `texts` in one line, and how many more there are."""
    more = [f"and {len(texts) - most} more"] if len(texts) > most else []
    return separator.join([*texts[:most], *more])


def say(*lines: str, file: TextIO | None = None) -> None:
    """Print each of `lines`, made printable, on standard output unless told otherwise."""
    print("\n".join(map(printable, lines)), file=file, flush=True)


def say_text(text: str, *, file: TextIO | None = None) -> None:
    """Print a text of several lines, such as a report, each made printable."""
    say(*text.split("\n"), file=file)


def get_logger(name: str) -> logging.Logger:
    """Return the logger of that name; its records come out printable, whichever handler they reach."""
    logger = logging.getLogger(name)
    if _make_printable not in logger.filters:
        logger.addFilter(_make_printable)
    return logger


@functools.lru_cache(maxsize=1000)
def warn_once(logger: logging.Logger, text: str) -> None:
    """Log a warning, once in a process."""
    logger.warning("%s", text)


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # os.fsdecode's surrogate for a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    named = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}.get(code)
    if named is not None:
        return named
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _make_printable(record: logging.LogRecord) -> bool:
    record.msg, record.args = printable(record.getMessage()), ()
    return True
