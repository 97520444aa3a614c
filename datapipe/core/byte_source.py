"""What parsers read from: bytes in memory, a mapped file, an object in a store."""

from __future__ import annotations

from typing import Protocol, overload


class ByteSource(Protocol):
    """Bytes of known number, looked at here and there; `bytes` and `mmap.mmap` are such."""

    def __len__(self) -> int: ...

    @overload
    def __getitem__(self, place: int, /) -> int: ...
    @overload
    def __getitem__(self, place: slice, /) -> bytes: ...
