"""The benchmark of other loaders' shards: what it compares, and with what."""

from __future__ import annotations

from typing import Any

from benchmarks import foreign
from benchmarks.contenders import CONTENDERS
from benchmarks.data import _MAKERS
from benchmarks.shown import images


def measured(rate: float) -> dict[str, Any]:
    return {"images_per_s": rate, "versions": {}}


def test_every_form_is_made_and_read_by_our_loader_and_its_own() -> None:
    for form, own in foreign.IN_PLACE.items():
        ours, theirs = CONTENDERS[foreign.LINE_UP[form]], CONTENDERS[foreign.LINE_UP[own]]
        assert ours.module == "ours"
        assert ours.needs == ours.options["part"] == theirs.needs
        assert ours.needs in _MAKERS


def test_what_has_no_environment_is_left_out() -> None:
    none: dict[str, str | None] = {"peers": None, "ffcv": None}
    assert [name for name in foreign.LINE_UP if foreign._can_run(name, none)] == ["tar", "tar-again", "lance", "pylance"]
    peers = none | {"peers": "python"}
    runs = [name for name in foreign.LINE_UP if foreign._can_run(name, peers)]
    assert runs == ["tar", "tar-again", "mds", "litdata", "lance", "mosaicml", "lightning", "pylance"]


def test_ratios_are_to_tar_and_to_the_own_loader() -> None:
    rates = {"tar": 1000.0, "tar-again": 1005.0, "mds": 980.0, "beton": 900.0, "mosaicml": 490.0}
    result = foreign.summarise({name: [measured(rate)] * 7 for name, rate in rates.items()})
    assert {name: ratio["ratio"] for name, ratio in result["ratios"].items()} == {
        "tar-again / tar": 1.005, "mds / tar": 0.98, "beton / tar": 0.9, "mds / mosaicml": 2.0,
    }  # fmt: skip
    assert {name: aim["is_met"] for name, aim in result["aims"].items()} == {"mds": True, "beton": False}
    assert any(line.startswith("beton / tar") and line.endswith("NOT met") for line in foreign.as_lines(result))
    assert "MosaicML's 2.00x" in images.in_place(result)
