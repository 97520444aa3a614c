"""Converting, and opening what was converted."""

from __future__ import annotations

from typing import Any

from benchmarks.shown.cells import interval


def converting(result: dict[str, Any]) -> str:
    """Conversion against `tar cf` and `sha256sum`."""
    ours, (few, many) = result["contenders"]["ours"], result["memory"]
    return (
        f"Converting {result['dataset']['nbytes'] / 1e9:.1f} GB of loose files took {interval(result['ratios']['ours / tar'])} "
        f"the time of `tar cf` and `sha256sum` ({ours['median_s']:.1f} s), with {few['peak_anonymous_mb']:.0f} MB of memory "
        f"for {few['num_files']:,} files and {many['peak_anonymous_mb']:.0f} MB for {many['num_files']:,}."
    )


def from_archives(result: dict[str, Any]) -> str:
    """Conversion from archives and on a Ray cluster, against the folder."""
    of_folder = {name: interval(rates["wall_s"]) for name, rates in result["rates"].items()}
    ray = result["ray"]
    return (
        f"Converting {result['dataset']['nbytes'] / 1e9:.1f} GB of photographs from an archive, read in place, against the "
        f"folder (which a second time had {of_folder['folder-again']} of its own rate): a tar {of_folder['plain.tar']}, a tar of "
        f"the classes' tars {of_folder['nested.tar']}, a folder of those {of_folder['class-tars']}, a zip "
        f"{of_folder['stored.zip']}, deflated {of_folder['deflated.zip']}; a .tar.gz, which is unpacked first, "
        f"{of_folder['plain.tar.gz']}. On a Ray cluster of the same machine the folder took {interval(ray['overhead'])} of the "
        f"local time, after {ray['startup_s']:.1f} s to start."
    )


def opening(result: dict[str, Any]) -> str:
    """Opening ten million samples."""
    dataset, median = result["dataset"], result["median"]
    return (
        f"A dataset of {dataset['num_samples'] / 1e6:.0f} million samples in {dataset['num_shards']:,} shards opened and planned "
        f"its first shuffled batch in {median['total_s']:.2f} s with {median['anonymous_mb']:.0f} MB of memory."
    )
