"""MPEG transport streams: the packets of a track lie in pieces of up to 184 bytes, among those of sound and of others."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

_SYNC = 0x47
_PACKET_NBYTES = 188
_PES_HEADER_NBYTES = 9  # without what its last byte counts
BEGINNING_NBYTES = 2 * 192  # of a file, in which `of` looks


class Framing(NamedTuple):
    """How packets lie in a transport stream (ISO/IEC 13818-1): in the payloads of its own packets, as PES packets.

    A video packet is given by the stretch of the file that holds it, and nothing else of its track.
    """

    stride: int  # bytes from one packet of the stream to the next: 188, or 192 with a time stamp before each (.m2ts)
    pid: int  # which of them are the track's

    @classmethod
    def of(cls, beginning: bytes, pid: int = 0) -> Self | None:
        """Return the framing of a file from its first bytes; None if it is no transport stream."""
        for stride in (_PACKET_NBYTES, _PACKET_NBYTES + 4):
            lead = stride - _PACKET_NBYTES
            if beginning[lead : lead + 1] == b"G" == beginning[lead + stride : lead + stride + 1]:
                return cls(stride, pid)
        return None

    def payload(self, data: bytes | memoryview) -> memoryview:
        """Return the bytes of the track in a stretch of the file that begins with a packet of the stream, cut or not."""
        num = len(data) // self.stride
        rows = np.frombuffer(data, np.uint8, num * self.stride).reshape(num, self.stride)[:, self.stride - _PACKET_NBYTES :]
        pid = (rows[:, 1] & 0x1F).astype(np.int64) << 8 | rows[:, 2]
        rows = rows[(rows[:, 0] == _SYNC) & (pid == self.pid) & (rows[:, 3] & 0x10 != 0)]
        start = 4 + np.where(rows[:, 3] & 0x20, 1 + rows[:, 4].astype(np.int64), 0)  # after the adaptation field
        length_at = np.minimum(start + _PES_HEADER_NBYTES - 1, _PACKET_NBYTES - 1)
        header = _PES_HEADER_NBYTES + rows[np.arange(len(rows)), length_at].astype(np.int64)
        start += np.where(rows[:, 1] & 0x40, header, 0)
        return memoryview(rows[np.arange(_PACKET_NBYTES) >= start[:, None]].tobytes())
