"""The columns that say where a sample's fields lie: read back as written, and digested as they have always been."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converters.planning.places import Contents, columns_of, contents_of, digested
from datapipe.codecs.stored import deflated, joined, member, prefixed, summed_crc32, value_nbytes
from datapipe.index.listed import ListedSample, Origin

NAMES = st.text(st.sampled_from("ab%'\"é\\{ "), min_size=1, max_size=4)
CODECS = st.sampled_from([
    "",
    prefixed(b"head"),
    summed_crc32(7),
    deflated(812, 9),
    joined(deflated(812, 9), prefixed(b"ab")),
    member("te%xt", is_text=True),
])  # fmt: skip
FILES = {b"a.tar": (4, ""), b"100%d's.zip": (5, "e'tag"), b"bad\xff": (6, "")}  # times and etags by path


def origin_in(path: bytes, offset: int, nbytes: int, codec: str, is_spooled: bool) -> Origin:
    mtime_ns, etag = FILES[path]
    return Origin(path, offset, nbytes, 1 << 41, mtime_ns, codec, is_spooled, etag)


NUMBERS = st.integers(0, 1 << 40)
ORIGINS = st.builds(origin_in, st.sampled_from(sorted(FILES)), NUMBERS, NUMBERS, CODECS, st.booleans())
SAMPLES = st.builds(
    ListedSample,
    st.just(b"folder"),
    st.just(b"name"),
    origins=st.dictionaries(NAMES, ORIGINS, max_size=3),
    values=st.dictionaries(NAMES, st.text(st.sampled_from("x%'\"\ud83d"), max_size=3), max_size=2),
    size=st.none() | st.tuples(st.integers(1, 9), st.integers(1, 9)),
)


def in_plain_words(sample: ListedSample) -> str:
    """What is digested of a sample, stated by itself."""
    if not sample.origins and not sample.values and sample.size is None:
        return "None"
    files: dict[tuple[bytes, bool], list[Any]] = {}
    fields: dict[str, list[Any]] = {}
    for name, origin in sample.origins.items():
        file = [origin.path.decode(errors="surrogateescape"), origin.file_nbytes, *filter(None, [origin.etag])]
        files.setdefault((origin.path, origin.is_spooled), file)
        fields[name] = [list(files).index((origin.path, origin.is_spooled)), origin.offset, origin.nbytes]
        if origin.codec:
            codec = re.sub(r"deflate:\d+", f"deflate:{origin.nbytes}", origin.codec)
            fields[name][2:] = [value_nbytes(origin.nbytes, origin.codec), codec]
    shown: dict[str, Any] = {"files": list(files.values()), "fields": fields}
    shown |= {"values": sample.values} if sample.values else {}
    shown |= {} if sample.size is None else {"size": sample.size}
    return repr(json.dumps(shown, sort_keys=True))


@pytest.mark.nightly
@settings(max_examples=300)
@given(sample=SAMPLES)
def test_columns_are_read_as_written_and_digested_by_a_fixed_text(sample: ListedSample) -> None:
    columns = columns_of(sample)
    nbytes = sum(value_nbytes(one.nbytes, one.codec) for one in sample.origins.values())
    expected = Contents(dict(sample.origins), dict(sample.values), nbytes, sample.size)
    assert contents_of(b"folder/name", 0, columns, 1, ("a",)) == expected
    assert digested(columns) == in_plain_words(sample)


def test_one_whole_file_of_the_sample_s_name_needs_its_time_alone() -> None:
    origin = Origin.whole(b"folder/name", 5, 17)
    columns = columns_of(ListedSample(b"folder", b"name", origins={"b": origin}))
    assert columns == (17, None, None, None)
    assert contents_of(b"folder/name", 5, columns, 2, ("a", "b")) == Contents({"b": origin}, {}, 5, None)


def test_lines_of_a_file_have_the_same_details() -> None:
    lines = [ListedSample(b"x", b"", origins={"text": Origin(b"x.jsonl", start, 9, 100, 3, "text:61")}) for start in (0, 10)]
    (_, details, first, _), (_, same, second, _) = map(columns_of, lines)
    assert details == same
    assert first != second
