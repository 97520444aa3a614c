"""Samples that a format, or any of them, cannot hold: bad samples by the policy, not the end of a conversion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reading import converted, field_of, skipping, sources_of
from source_trees import image, put

from converters import OnError
from converters.writers import Target
from datapipe.errors import DecodeError

TEXTS = {
    "latin": ("txt", "für".encode("latin-1"), "field 'txt': byte 0xfc at 1 is not UTF-8"),
    "utf-16": ("json", '{"a": 1}'.encode("utf-16"), "field 'json': byte 0xff at 0 is not UTF-8"),
    "half a character": ("json", b'"\xed\xa0\x80"', "field 'json': byte 0xed at 1 is not UTF-8"),
}


def paired(root: Path, suffix: str, odd: bytes, *, num: int = 4) -> Path:
    """Images and texts; the second sample's text is `odd`."""
    for number in range(num):
        put(root / f"{number}.jpg", image(number))
        put(root / f"{number}.{suffix}", odd if number == 1 else b"1")
    return root


@pytest.mark.parametrize("case", TEXTS)
def test_texts_that_are_not_utf_8(tmp_path: Path, to: str, case: str) -> None:
    suffix, data, said = TEXTS[case]
    source = paired(tmp_path / "in", suffix, data)
    with pytest.raises(DecodeError, match=f"1.jpg: bad sample: {said}"):
        converted(source, tmp_path / "fail", to=to)
    bad = skipping(source, tmp_path / "skip", to=to)
    assert list(bad) == ["1.jpg"]
    assert bad["1.jpg"].startswith(said)
    assert sources_of(tmp_path / "skip") == ["0.jpg", "2.jpg", "3.jpg"]
    skipping(source, tmp_path / "aside", to=to, on_error=OnError.QUARANTINE)
    assert (tmp_path / "aside" / "quarantine" / f"1.{suffix}").read_bytes() == data
    assert (tmp_path / "aside" / "quarantine" / "1.jpg").read_bytes() == image(1)


def test_json_that_begins_with_a_mark_of_its_order(tmp_path: Path, to: str) -> None:
    """As Windows' editors save it; readers take it."""
    data = b"\xef\xbb\xbf[1]"
    out = converted(paired(tmp_path / "in", "json", data), tmp_path / "out", to=to)
    assert field_of(out, "json")[1] == data
    assert json.loads(data) == [1]


def test_samples_that_are_too_large_for_any_format(tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("converters.samples.reading.MAX_SAMPLE_NBYTES", 5_000)
    source = paired(tmp_path / "in", "txt", b"x" * 6_000)
    assert skipping(source, tmp_path / "out", to=to) == {
        "1.jpg": f"{6_000 + len(image(1))} bytes exceed the limit of 5000 for one sample"
    }


LIMITS = {
    "tar": ("tar.layout.MAX_MEMBER_NBYTES", 5_000, "field 'txt' of 6000 bytes exceeds the 5000 of a tar"),
    "parquet": ("parquet.MAX_FIELD_NBYTES", 5_000, "field 'txt' of 6000 bytes exceeds the 5000 of a page"),
    "tfrecord": (
        "tfrecord.layout.MAX_EXAMPLE_NBYTES",
        16_384 + 5_000,
        r"\d+ bytes of fields exceed the 21384 of a tf.train.Example",
    ),
}


def test_samples_that_are_too_large_for_this_format(
    tmp_path: Path, to: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target.container not in LIMITS:
        assert len(field_of(converted(paired(tmp_path / "in", "txt", b"x" * 6_000), tmp_path / "out", to=to), "txt")) == 4
        return
    name, limit, said = LIMITS[target.container]
    monkeypatch.setattr(f"datapipe.containers.{name}", limit)
    source = paired(tmp_path / "in", "txt", b"x" * 6_000)
    with pytest.raises(DecodeError, match=f"1.jpg: bad sample: {said}"):
        converted(source, tmp_path / "fail", to=to)
    skipping(source, tmp_path / "out", to=to, on_error=OnError.QUARANTINE)
    assert sources_of(tmp_path / "out") == ["0.jpg", "2.jpg", "3.jpg"]
    assert (tmp_path / "out" / "quarantine" / "1.txt").read_bytes() == b"x" * 6_000
