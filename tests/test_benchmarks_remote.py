"""The benchmark of object stores: its figures."""

from __future__ import annotations

from benchmarks import remote


def test_variants_are_held_against_the_local_set() -> None:
    def rounds(rate: float, cpu_us: float) -> list[dict[str, float]]:
        return [{"images_per_s": rate, "images_per_s_apart": rate, "cpu_us_per_image": cpu_us}] * 5

    result = remote.summarise(
        {
            "local": rounds(1000, 1000),
            "local-again": rounds(1000, 1000),
            "ranges": rounds(800, 1250),
            "warm cache": rounds(990, 1000),
            "litdata, cold": [None, *[{"images_per_s": 250.0, "images_per_s_apart": 300.0}] * 4],
            "mds, cold": [None] * 5,
        },
        {"local": [10.0, 12.0, 11.0], "ranges": [50.0, 52.0, 51.0]},
    )
    assert result["variants"]["ranges"]["to_local"]["ratio"] == 0.8
    assert result["variants"]["ranges"]["to_local_by_cpu"]["ratio"] == 0.8
    assert "mds, cold" not in result["variants"]
    assert [found["num_failed"] for found in result["variants"].values()] == [0, 0, 0, 0, 1]
    assert result["held_us_per_image"] == {"local": 11.0, "ranges": 51.0}
    result |= {
        "server": {"cpu_us_per_answer": 180},
        "first_batch_of_many_shards_s": {"median": 1.5, "highest": 2.0},
        "settings": {"many_shards": 2500, "latency_ms": 50},
    }
    lines = remote.as_lines(result)
    assert lines[3].split()[:3] == ["ranges", "800", "0.80x"]
    assert lines[5].split() == ["litdata,", "cold", "250", "0.25x", "[0.25,", "0.25]", "0.30x", "[0.30,", "0.30]"], (
        "the CPU of its workers is not known"
    )
    assert lines[-1] == "first batch from 2,500 shards at 50 ms: 1.50 s (2.00 at most)"
