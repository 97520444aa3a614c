"""What goes over the wire comes out equal, and what no loader sends is refused."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from fixtures import quick
from hypothesis import given, settings
from hypothesis import strategies as st

from datapipe.errors import FormatError
from datapipe.index.entries import Extents
from datapipe.order.draws import Draws
from datapipe.remote_workers.wire import (
    DrawsForm,
    ExtentsForm,
    Request,
    draws_of,
    extents_of,
    form_of_draws,
    form_of_extents,
    packed,
    unpacked,
)

PATHS = st.one_of(
    st.text("ab/\udc80ü .", max_size=8).map(lambda text: "/" + text.strip("/").replace("//", "/")), st.just("s3://bucket/a b")
)
WORDS = st.integers(0, 2**62)


@st.composite
def extents(draw: st.DrawFn) -> Extents:
    paths = draw(
        st.lists(PATHS.filter(lambda path: ".." not in path and "/." not in path and not path.endswith("/")), max_size=5)
    )
    num = len(paths)
    column = st.lists(WORDS, min_size=num, max_size=num)
    codecs = draw(st.none() | st.lists(st.sampled_from(["", "prefix:00", "absent:why"]), min_size=num, max_size=num))
    return Extents(
        paths,
        np.array(draw(column), np.int64),
        np.array(draw(column), np.int64),
        np.array(draw(column), np.int64).astype(np.uint32),
        np.ones(num, np.uint8),
        draw(st.booleans()),
        codecs,
    )


@settings(quick)
@given(extents())
def test_extents_come_out_equal(sent: Extents) -> None:
    found = extents_of(unpacked(packed(form_of_extents(sent)), ExtentsForm))
    assert found.paths == sent.paths
    assert (found.codecs or [""] * len(sent)) == (sent.codecs or [""] * len(sent))
    assert found.one_file_each == sent.one_file_each
    for name in ("offset", "nbytes", "crc32c", "has_crc"):
        assert np.array_equal(getattr(found, name), getattr(sent, name))


@settings(quick)
@given(st.integers(-(2**200), 2**200), st.integers(0, 2**40), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_draws_come_out_equal(seed: int, epoch: int, ids: list[int]) -> None:
    sent = Draws(seed, epoch, np.array(ids, np.int64))
    found = draws_of(unpacked(packed(form_of_draws(sent)), DrawsForm), len(ids))
    assert (found.seed, found.epoch, found.ids.tolist()) == (seed, epoch, ids)
    assert np.array_equal(found.uniform(3, 2), sent.uniform(3, 2))


@pytest.mark.parametrize(
    "form",
    [
        ExtentsForm([b"/a"], b"", b"", b"", b"", True, None),
        ExtentsForm([b"/a"], (-1).to_bytes(8, "little", signed=True), bytes(8), bytes(4), bytes(1), True, None),
        ExtentsForm([b"/a"], bytes(8), (-2).to_bytes(8, "little", signed=True), bytes(4), bytes(1), True, None),
        ExtentsForm([b"/a"], bytes(8), bytes(8), bytes(4), bytes(1), True, ["", ""]),
        ExtentsForm([b"/a"] * 100_000, bytes(800_000), bytes(800_000), bytes(400_000), bytes(100_000), True, None),
    ],
)
def test_extents_that_are_none(form: ExtentsForm) -> None:
    with pytest.raises(FormatError):
        extents_of(form)


@pytest.mark.parametrize("form", [DrawsForm(b"x", 0, b""), DrawsForm(b"9" * 100, 0, b""), DrawsForm(b"1", 0, bytes(7))])
def test_draws_that_are_none(form: DrawsForm) -> None:
    with pytest.raises(FormatError):
        draws_of(form, 0)


@settings(quick)
@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    for kind in (Request, ExtentsForm, DrawsForm):
        with contextlib.suppress(FormatError):
            assert isinstance(unpacked(data, kind), kind)


def test_nesting_is_refused() -> None:
    with pytest.raises(FormatError):
        unpacked(b"\x82\xa4kind\xa6images\xa4body" + b"\x91" * 100_000 + b"\x01", Request)
