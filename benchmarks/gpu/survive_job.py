"""Bad files by way of DALI, beside the CPU path over the same files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import datapipe
from benchmarks.gpu.settings import Check
from benchmarks.task import CROP
from datapipe import Dali


def measure(arguments: dict[str, Any], check: Check) -> Iterator[dict[str, Any]]:
    """One result. `arguments`: data (an image folder), damaged (ids), batch_size, policy."""
    damaged, policy = set(arguments["damaged"]), arguments["policy"]
    if policy == "raise":
        yield {"policy": policy, **_raised(arguments, check.device)}
        return
    expected, expected_bad, _ = _run(arguments, policy, "images_cpu", "cpu")
    found, found_bad, sizes = _run(arguments, policy, Dali(), check.device)
    # What became of a damaged file may differ in its pixels: decoders conceal errors in ways of their own.
    both = [sample for sample in found if sample in expected and sample not in damaged]
    differences = [float((found[sample].float() - expected[sample].float()).abs().mean()) for sample in both]
    yield {
        "policy": policy,
        "num_bad": len(found_bad),
        "same_verdict": found_bad == expected_bad,
        "same_samples": sorted(found) == sorted(expected),
        "bad_though_whole": sorted(found_bad - damaged)[:10],
        "verdicts_differ": sorted(found_bad ^ expected_bad)[:10],
        "num_compared": len(both),
        "worst_mean_difference": round(max(differences, default=0.0), 3),
        "batch_sizes": sizes,
    }


def _run(
    arguments: dict[str, Any], policy: str, backend: Any, device: str
) -> tuple[dict[int, torch.Tensor], set[int], list[int]]:
    """id -> pixels, the bad ids, and the sizes of the batches."""
    loader = _loader(arguments, policy, backend, device)
    found: dict[int, torch.Tensor] = {}
    sizes = []
    for batch in loader:
        images, ids = batch["image"].cpu(), batch["id"].tolist()
        found.update(zip(ids, images, strict=True))
        sizes.append(len(ids))
    return found, {bad.id for bad in loader.bad_samples}, sizes


def _raised(arguments: dict[str, Any], device: str) -> dict[str, Any]:
    """What the first damaged batch raises, and how many came before."""
    loader, num_batches = _loader(arguments, "raise", Dali(), device), 0
    try:
        for _ in loader:
            num_batches += 1
    except datapipe.DatapipeError as exc:
        return {"raised": type(exc).__name__, "says": str(exc)[:300], "num_batches": num_batches}
    return {"raised": None, "num_batches": num_batches}


def _loader(arguments: dict[str, Any], policy: str, backend: Any, device: str) -> Any:
    choice: Any = policy
    return datapipe.DataLoader(
        arguments["data"],
        batch_size=arguments["batch_size"],
        num_workers=4,
        transform=[datapipe.RandomResizedCrop(CROP), datapipe.RandomHorizontalFlip()],
        device=device,
        backend=backend,
        output="dict",
        on_error=choice,
    )
