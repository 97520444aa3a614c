"""Tar headers: byte for byte what Python's tarfile writes for plain USTAR members."""

from __future__ import annotations

import tarfile

import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.containers.tar.layout import MAX_MEMBER_NBYTES, IndexedMember, dali_index, member_header, padding
from datapipe.errors import FormatError


@quick
@given(
    name=st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/"), min_size=1, max_size=100),
    nbytes=st.integers(0, MAX_MEMBER_NBYTES),
)
def test_header_is_tarfiles(name: str, nbytes: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = nbytes
    header = member_header(name.encode(), nbytes)
    assert len(header) == 512
    assert header == info.tobuf(tarfile.USTAR_FORMAT)


@pytest.mark.parametrize("name", [b"", b"a" * 101, "é".encode()])
def test_names_that_do_not_fit_are_refused(name: bytes) -> None:
    with pytest.raises(FormatError, match="name"):
        member_header(name, 1)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(FormatError, match="exceeds"):
        member_header(b"a.jpg", MAX_MEMBER_NBYTES + 1)


@quick
@given(nbytes=st.integers(0, 5000))
def test_padding_reaches_the_next_block(nbytes: int) -> None:
    assert (nbytes + len(padding(nbytes))) % 512 == 0
    assert len(padding(nbytes)) < 512


def test_dali_index() -> None:
    samples = [(IndexedMember("jpg", 512, 3, "0.jpg"), IndexedMember("cls", 1536, 1, "0.cls"))]
    assert dali_index(samples, 1) == b"v1.2 1\njpg 512 3 0.jpg cls 1536 1 0.cls\n"
