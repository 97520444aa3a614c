"""Exceptions of the user's code pass through ours without a trace of it."""

from __future__ import annotations

import os

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def forget_us(exc: BaseException) -> None:
    """Take our own frames off the start of the traceback. For an `except` clause that ends with a bare `raise`,
    which adds none."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    exc.__traceback__ = trace
