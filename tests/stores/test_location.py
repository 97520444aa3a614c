"""URLs of stores: what they mean, and that nothing secret in them is ever repeated."""

from __future__ import annotations

import pytest
from fixtures import quick
from hypothesis import given
from hypothesis import strategies as st

from datapipe.errors import OptionError
from datapipe.stores.location import Location, is_url, located, redacted
from datapipe.stores.places import parse_location


@pytest.mark.parametrize(
    ("url", "scheme", "root", "key"),
    [
        ("s3://bucket", "s3", "bucket", ""),
        ("s3://bucket/", "s3", "bucket", ""),
        ("s3://Bucket/a/b c/", "s3", "Bucket", "a/b c"),
        ("gs://bucket/train", "gs", "bucket", "train"),
        ("az://container/train", "az", "container", "train"),
        ("https://host.example:8443/data/train", "https", "host.example:8443", "data/train"),
        ("hf://datasets/owner/name/data", "hf", "owner/name@main", "data"),
        ("hf://datasets/owner/name", "hf", "owner/name@main", ""),
        ("hf://datasets/owner/name@v1.0/data", "hf", "owner/name@v1.0", "data"),
        ("hf://datasets/owner/name@refs/convert/parquet/default", "hf", "owner/name@refs/convert/parquet", "default"),
        ("https://huggingface.co/datasets/owner/name", "hf", "owner/name@main", ""),
        ("https://huggingface.co/datasets/owner/name/resolve/v1/a/b%20c.tar", "hf", "owner/name@v1", "a/b c.tar"),
        ("https://huggingface.co/datasets/owner/name/tree/refs%2Fconvert%2Fparquet", "hf", "owner/name@refs/convert/parquet", ""),
        ("hf://datasets/owner/name@refs%2Fpr%2F1", "hf", "owner/name@refs/pr/1", ""),
    ],
)
def test_what_urls_mean(url: str, scheme: str, root: str, key: str) -> None:
    assert located(url) == Location(scheme, root, key)


@pytest.mark.parametrize(
    "url",
    ["ftp://h/x", "s3://", "s3:///x", "s3://b/a//c", "s3://b/../c", "hf://models/o/n", "hf://datasets/o", "http://h:port/x"],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(OptionError):
        parse_location(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://user:sesame@host/data",
        "s3://user:sesame@bucket/data",
        "https://host/data?X-Amz-Signature=sesame",
        "az://container/data?sig=sesame#sesame",
        "ftp://sesame@host/data?sesame",
    ],
)
def test_secrets_in_urls_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_location(url)
    assert "sesame" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "sesame" not in redacted(url)


@given(st.lists(st.text("abcXYZ029-_. %?#", min_size=1).filter(lambda part: part not in (".", "..")), max_size=4))
@quick
def test_urls_come_back(parts: list[str]) -> None:
    location = Location("s3", "bucket", "/".join(parts))
    assert parse_location(str(location)) == location
    assert location / "x" == Location("s3", "bucket", "/".join([*parts, "x"]))
    assert is_url(str(location))


@pytest.mark.parametrize("path", ["shards", "/data/a:b", "./s3:/x", "C:\\x", "a/b://c"])
def test_paths_are_no_urls(path: str) -> None:
    assert not is_url(path)
