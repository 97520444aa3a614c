"""webdataset's pipelines taken over, where they do no more than shuffle, decode, map and batch."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_device import pretend_gpus
from fixtures import NUM_SAMPLES, make_folder, write_webdataset
from stand_in_stores import directory_store, needs_obstore

import datapipe as dp
from datapipe import transforms as T

wds = pytest.importorskip("webdataset")
CENTRE = T.CenterCrop(24)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wds")
    return write_webdataset(make_folder(root / "folder"), root / "set")


def same(label: int) -> int:
    return label


def split_by_node(shards: Any) -> Any:
    return itertools.islice(shards, 1)


def pipeline(shards: Path, **arguments: Any) -> Any:
    return wds.WebDataset(str(shards / "set-{000..003}.tar"), **({"shardshuffle": False} | arguments))


def classification(shards: Path, **arguments: Any) -> Any:
    return pipeline(shards, **arguments).decode("pil").to_tuple("jpg;png", "cls")


def loader_of(stream: Any, batch_size: int | None = 5, **arguments: Any) -> Any:
    return torch.utils.data.DataLoader(stream, batch_size=batch_size, **arguments)


def test_a_pipeline_is_seen_through(shards: Path) -> None:
    ours = dp.from_torch(loader_of(classification(shards).map_tuple(CENTRE, same)))
    assert isinstance(ours, dp.DataLoader)
    assert len(ours) == 8
    expected = list(dp.DataLoader(shards, batch_size=5, transform=[CENTRE]))
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
    theirs = [int(label) for _, label in classification(shards)]
    assert torch.cat([labels for _, labels in ours]).tolist() == theirs


def test_batches_made_in_the_pipeline(shards: Path) -> None:
    stream = pipeline(shards, shardshuffle=10).shuffle(100).decode("pilrgb").to_tuple("jpg").map_tuple(CENTRE)
    ours = dp.from_torch(loader_of(stream.batched(8, partial=False), None))
    assert isinstance(ours, dp.DataLoader)
    batches = list(ours)
    assert [[tuple(part.shape) for part in batch] for batch in batches] == [[(8, 3, 24, 24)]] * 4
    assert ours.state_dict()["order"] == "shuffled"
    whole = dp.from_torch(loader_of(stream.batched(8), None))
    assert sum(len(batch[0]) for batch in whole) == NUM_SAMPLES


REASONS: dict[str, tuple[Any, str]] = {
    "a map of one's own": (lambda shards: pipeline(shards).map(same), "maps samples with same, which is not decode"),
    "epochs of its own": (lambda shards: classification(shards).with_epoch(10), "with_epoch"),
    "arrays": (lambda shards: pipeline(shards).decode("rgb").to_tuple("jpg", "cls"), "not decode"),
    "no tuples": (lambda shards: pipeline(shards).decode("pil"), "to_tuple"),
    "other fields": (lambda shards: pipeline(shards).decode("pil").to_tuple("jpg", "json"), "not an image and optionally cls"),
    "other labels": (lambda shards: classification(shards).map_tuple(CENTRE, lambda label: label + 1), "maps labels to others"),
    "labels that look the same": (lambda shards: classification(shards).map_tuple(CENTRE, float), "maps labels to others"),
    "a handler": (
        lambda shards: classification(shards, handler=wds.ignore_and_continue),
        "an error handler (ignore_and_continue)",
    ),
    "labels decoded otherwise": (
        lambda shards: pipeline(shards).decode(wds.handle_extension("cls", float), "pil").to_tuple("jpg", "cls"),
        "not decode('pil') alone",
    ),
    "a splitter of that name": (
        lambda shards: pipeline(shards, nodesplitter=split_by_node).decode("pil").to_tuple("jpg", "cls"),
        "has an unsupported stage (split_by_node)",
    ),
    "a filter": (lambda shards: classification(shards).select(lambda sample: True), "has an unsupported stage"),
    "work behind batches": (lambda shards: classification(shards).batched(4).map(same), "more than batch its samples"),
    "resampled": (lambda shards: pipeline(shards, resampled=True).decode("pil").to_tuple("jpg", "cls"), ""),
    "a command": (
        lambda shards: wds.WebDataset("pipe:cat x.tar", shardshuffle=False).decode("pil").to_tuple("jpg"),
        "reads from cat",
    ),
}


@pytest.mark.parametrize("name", REASONS)
def test_others_are_left_to_webdataset(shards: Path, name: str) -> None:
    from datapipe.datasets import webdataset_stream

    make, reason = REASONS[name]
    stream = make(shards)
    found = webdataset_stream(stream)
    assert isinstance(found, str)
    assert reason in found
    assert not isinstance(dp.from_torch(loader_of(stream, None)), dp.DataLoader)


def test_transforms_that_are_not_ours_are_left_to_webdataset(shards: Path) -> None:
    stream = classification(shards).map_tuple(lambda image: torch.tensor(image.size), same)
    batch = next(iter(dp.from_torch(loader_of(stream, 4))))
    assert batch[0].shape == (4, 2)


def test_a_collate_fn_behind_batches_is_given_them(shards: Path) -> None:
    batches = classification(shards).map_tuple(CENTRE, same).batched(4)
    loader = dp.from_torch(loader_of(batches, None, collate_fn=len))
    assert not isinstance(loader, dp.DataLoader)
    assert "takes the batches that the webdataset pipeline has made" in loader.origin  # type: ignore[attr-defined]


def test_a_webloader_is_what_it_wraps(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batches = classification(shards).shuffle(10).map_tuple(CENTRE, same).batched(4)
    ours = dp.from_torch(wds.WebLoader(batches, batch_size=None, num_workers=2))
    assert isinstance(ours, dp.DataLoader)
    assert sum(len(labels) for _, labels in ours) == NUM_SAMPLES
    print(dp.explain(ours))
    told = capsys.readouterr().out.splitlines()[0]
    assert told.endswith(
        "WebDataset: datapipe reads its files; its buffered shuffle became one of all samples, which resumes exactly; "
        "batches are made of all shards together, not of the shards of each worker"
    )


def unseen(shards: Path) -> Any:
    return classification(shards).map_tuple(lambda image: torch.tensor(image.size), same).batched(4)


WEB_LOADERS: dict[str, Any] = {
    "over a pipeline that is not seen": lambda shards: wds.WebLoader(unseen(shards), batch_size=None),
    "rebatched": lambda shards: wds.WebLoader(unseen(shards), batch_size=None).unbatched().shuffle(10).batched(5),
    "rebatched, over a pipeline that could be seen": lambda shards: wds.WebLoader(
        classification(shards).map_tuple(CENTRE, same).batched(4), batch_size=None
    ).unbatched().shuffle(10),
    "with an epoch": lambda shards: wds.WebLoader(unseen(shards), batch_size=None).with_epoch(3),
    "with a length": lambda shards: wds.WebLoader(unseen(shards), batch_size=None).with_length(3, silent=True),
}  # fmt: skip


@pytest.mark.parametrize("name", WEB_LOADERS)
def test_a_webloader_that_is_unchanged_is_the_object(shards: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = WEB_LOADERS[name](shards)
    theirs.num_batches = 3
    ours: Any = dp.from_torch(theirs, device="cpu")
    assert ours is theirs
    assert ours.num_batches == 3
    told = str(dp.explain(ours)).splitlines()[0]
    assert told.endswith("the loader is unchanged, and has no state to save")
    if name.startswith(("rebatched", "with an epoch")):
        assert "its WebLoader has stages or epochs of its own" in told
    if "could be seen" not in name:  # webdataset cannot call datapipe's transforms
        assert len(list(ours)) == (3 if name == "with an epoch" else len(list(WEB_LOADERS[name](shards))))
    with pytest.raises(dp.errors.OptionError, match="share_among_ranks=True: "):
        dp.from_torch(theirs, share_among_ranks=True)
    with pytest.raises(dp.errors.OptionError, match="on_error='skip'"):
        dp.from_torch(theirs, on_error="skip")
    with pytest.raises(dp.errors.OptionError, match=r"data='x': torch's workers make the samples"):
        dp.from_torch(theirs, data="x")
    pretend_gpus(monkeypatch, 1)
    copied: Any = dp.from_torch(WEB_LOADERS[name](shards))
    assert "its batches are copied to cuda:0 ahead, and it has no state to save" in str(dp.explain(copied))


def test_attributes_of_a_webloader_are_carried_over(shards: Path) -> None:
    theirs = wds.WebLoader(classification(shards).map_tuple(CENTRE, same).batched(4), batch_size=None)
    theirs.num_batches, theirs.num_samples = 10, NUM_SAMPLES
    ours: Any = dp.from_torch(theirs)
    assert isinstance(ours, dp.DataLoader)
    assert (ours.num_batches, ours.num_samples) == (10, NUM_SAMPLES)


def test_ranks_share_a_stream_where_asked(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = classification(shards).map_tuple(CENTRE, same).batched(4)
    monkeypatch.setenv("WORLD_SIZE", "2")
    taken = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        ours = dp.from_torch(loader_of(batches, None), share_among_ranks=True, seed=0)
        taken.append(sum(len(labels) for _, labels in ours))
    assert taken == [19, 19]


@needs_obstore
@pytest.mark.parametrize(
    "form",
    ["{http}/wds/set-{{000..003}}.tar", "pipe:curl -s -L {http}/wds/set-{{000..003}}.tar",
     "pipe:aws s3 cp --quiet s3://bkt/wds/set-{{000..003}}.tar -", "s3://bkt/wds/set-{{000..003}}.tar"],
)  # fmt: skip
def test_shards_in_a_store(shards: Path, tmp_path: Path, form: str) -> None:
    with directory_store(tmp_path, wds=shards) as store:
        stream = wds.WebDataset(form.format(http=f"{store.url}/bkt"), shardshuffle=False).decode("pil").to_tuple("jpg;png", "cls")
        ours = dp.from_torch(loader_of(stream.map_tuple(CENTRE, same)))
        assert isinstance(ours, dp.DataLoader)
        for one, other in zip(ours, dp.DataLoader(shards, batch_size=5, transform=[CENTRE]), strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "pipe:curl -H 'Authorization: secret' https://host/a.tar",
            "reads from curl, of which datapipe knows a plain",
        ),
        ("pipe:curl https://host/a.tar | tee x", "reads from curl"),
        ("pipe:aws s3 cp s3://b/a.tar - --profile secret", "reads from aws"),
        ("pipe:cat x.tar", "reads from cat"),
        ("https://host/a.tar?signature=secret", "has a query .removed here."),
    ],
)
def test_commands_and_urls_that_are_not_read(url: str, said: str) -> None:
    ours = dp.from_torch(loader_of(wds.WebDataset(url, shardshuffle=False).decode("pil").to_tuple("jpg").map_tuple(CENTRE)))
    assert not isinstance(ours, dp.DataLoader)
    told = str(getattr(ours, "origin", ""))
    assert re.search(said, told)
    assert "secret" not in told
