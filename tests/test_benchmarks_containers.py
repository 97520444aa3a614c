"""The benchmark of containers: what it compares, and with what."""

from __future__ import annotations

from typing import Any

from benchmarks import containers
from benchmarks.contenders import CONTENDERS
from benchmarks.data import _MAKERS


def measured(rate: float) -> dict[str, Any]:
    times = {"wall_s": 1.0, "own_cpu_s": 2.0, "first_batch_s": 0.1}
    return {"images_per_s": rate, "num_images": 128, "peak_rss_mb": 300.0, "versions": {}, **times}


def test_every_container_is_made_and_read_by_our_loader() -> None:
    for name in containers.LINE_UP.values():
        assert CONTENDERS[name].module == "ours"
        assert CONTENDERS[name].needs in _MAKERS
        assert CONTENDERS[name].options.get("part", "shards") == CONTENDERS[name].needs
    assert containers.BARS.keys() <= containers.LINE_UP.keys()


def test_ratios_are_to_tar_and_held_against_the_aims() -> None:
    rates = {"tar": 1000.0, "tar-again": 1005.0, "hdf5": 980.0, "parquet": 890.0, "folder": 700.0}
    result = containers.summarise({name: [measured(rate)] * 7 for name, rate in rates.items()})
    assert {name: ratio["ratio"] for name, ratio in result["ratios"].items()} == {
        "tar-again / tar": 1.005, "hdf5 / tar": 0.98, "parquet / tar": 0.89, "folder / tar": 0.7,
    }  # fmt: skip
    assert {name: aim["is_met"] for name, aim in result["aims"].items()} == {"hdf5": True, "parquet": False}
    lines = "\n".join(containers.as_lines(result))
    assert "0.890 of tar [0.890, 0.890], aimed at 0.9: NOT met" in lines
