"""Depth as LeRobot stores it: whole numbers of 12 bits in one channel, even steps of the distance, or of its logarithm."""

from __future__ import annotations

import math
from typing import NamedTuple

FORMAT = "gray12le"  # FFmpeg's name of frames of such numbers
NUM_CODES = 1 << 12


class Depth(NamedTuple):
    """How depth is stored; in metres. Defaults and formula are those of `lerobot/datasets/depth_utils.py`, release 0.6."""

    least: float = 0.01
    most: float = 10.0
    shift: float = 3.5  # that is added before the logarithm is taken
    is_log: bool = True

    @property
    def problem(self) -> str:
        """Why nothing can be stored like that; "" if it can."""
        if not all(map(math.isfinite, self[:3])) or self.least >= self.most or (self.is_log and self.least + self.shift <= 0):
            return f"depth from {self.least:g} to {self.most:g} m, shifted by {self.shift:g}, is no range"
        return ""
