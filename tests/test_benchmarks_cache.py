"""The benchmark of caches: its figures."""

from __future__ import annotations

from benchmarks import cache


def test_epochs_are_held_against_those_without_a_cache() -> None:
    rates = {"none": [800.0, 1000.0, 1010.0], "none-again": [800.0, 1000.0, 1000.0], "ram": [600.0, 2900.0, 3100.0]}
    result = cache.summarise({f"whole, {place}": [values] * 7 for place, values in rates.items()})
    ram = result["variants"]["whole, ram"]
    assert (ram["first_epoch"], ram["later_epochs"]) == (600.0, 3000.0)
    assert (ram["first_to_none"]["ratio"], ram["later_to_none"]["ratio"]) == (0.75, 2.985)
    assert cache.as_lines(result)[-1].split() == ["whole,", "ram", "600", "(0.75x)", "3000", "(2.98x)"]


def test_variants_keep_what_they_say() -> None:
    from datapipe.transforms import Recipe

    fronts = [len(Recipe.of(cache._transform(recipe)).split_front()[0].geometry) for recipe in cache.RECIPES]
    assert fronts == [0, 1, 2]
