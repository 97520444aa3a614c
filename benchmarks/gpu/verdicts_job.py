"""Bad files through DALI, and through the CPU path for comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import datapipe
from benchmarks.contenders.ours_gpu import check_decoder
from benchmarks.gpu.settings import Check
from benchmarks.task import CROP
from datapipe import Dali
from datapipe import transforms as T

_GARBLED = 8.0  # of 255, on average: a damaged image that was returned with other pixels than the CPU path's

Ran = tuple[dict[int, torch.Tensor], set[int], list[int]]


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """One result per case.

    `arguments`: dali (settings), batch_size, cases (of each: data, an image folder; damaged, ids; policy).
    """
    dali = Dali(**arguments["dali"])
    for case in arguments["cases"]:
        asked = {**case, "batch_size": arguments["batch_size"]}
        if case["policy"] == "raise":
            yield {"policy": "raise", **_raised(asked, dali, check.device)}
        else:
            yield {"policy": case["policy"], **_compared(asked, dali, check.device)}


def _compared(asked: dict[str, Any], dali: Dali, device: str) -> dict[str, Any]:
    damaged = set(asked["damaged"])
    expected, expected_bad, _ = _run(asked, "images_cpu", "cpu")
    found, found_bad, sizes = _run(asked, dali, device)
    differences = {
        sample: float((found[sample].float() - expected[sample].float()).abs().mean())
        for sample in found.keys() & expected.keys()
    }
    of_whole = [difference for sample, difference in differences.items() if sample not in damaged]
    of_damaged = [difference for sample, difference in differences.items() if sample in damaged]
    return {
        "num_bad": len(found_bad),
        "num_bad_on_cpu": len(expected_bad),
        "same_verdict": found_bad == expected_bad,
        "bad_though_whole": sorted(found_bad - damaged)[:10],
        "num_missed": len(expected_bad - found_bad),  # bad by the CPU path, but returned
        "num_garbled": sum(difference > _GARBLED for difference in of_damaged),
        "verdicts_differ": sorted(found_bad ^ expected_bad)[:10],
        "num_compared": len(of_whole),
        "worst_mean_difference": round(max(of_whole, default=0.0), 3),
        "batch_sizes": sizes,
    }


def _run(asked: dict[str, Any], backend: Any, device: str) -> Ran:
    """id -> pixels, the bad ids, and the sizes of the batches."""
    loader = _loader(asked, backend, device)
    check_decoder(loader, device)
    found: dict[int, torch.Tensor] = {}
    sizes = []
    for batch in loader:
        images, ids = batch["image"].cpu(), batch["id"].tolist()
        found.update(zip(ids, images, strict=True))
        sizes.append(len(ids))
    return found, {bad.id for bad in loader.bad_samples}, sizes


def _raised(asked: dict[str, Any], dali: Dali, device: str) -> dict[str, Any]:
    """What the first damaged batch raises, and how many came before."""
    loader, num_batches = _loader(asked, dali, device), 0
    try:
        for _ in loader:
            num_batches += 1
    except datapipe.errors.DatapipeError as exc:
        return {"raised": type(exc).__name__, "says": str(exc)[:300], "num_batches": num_batches}
    return {"raised": None, "num_batches": num_batches}


def _loader(asked: dict[str, Any], backend: Any, device: str) -> Any:
    return datapipe.DataLoader(
        asked["data"],
        batch_size=asked["batch_size"],
        seed=0,
        num_workers=4,
        transform=[T.RandomResizedCrop(CROP), T.RandomHorizontalFlip()],
        device=device,
        backend=backend,
        output="dict",
        on_error=asked["policy"],
    )
