"""Clips of videos, samples of episodes, crops of sound, conversations with images."""

from __future__ import annotations

from typing import Any

from benchmarks.shown.cells import costs, interval, line


def clips(result: dict[str, Any]) -> str:
    """CPU time of clips by everything that makes them, and the index."""
    titles = {"resize": "resized to 224", "crop": "a crop of each to 224"}
    cuts = [cut for cut in titles if cut in result["cpu_ms"]]
    lines = [
        line("CPU-ms a clip of 8 frames, every fourth of 640 x 480", [titles[cut] for cut in cuts]),
        "|---|" + "--:|" * len(cuts),
    ]
    lines += costs(result, cuts)
    index = result["index"]
    told = (
        "In parentheses: times as fast as torchcodec. H.264 with a key frame every 60; shuffled batches of 32, two threads or "
        f"workers. {index['files']:,} videos are looked at once, {index['files_per_s']:,} a second, and then "
        f"compared with their files, {index['reopened_per_s']:,} a second."
    )
    return "\n".join([*lines, "", told])


def episodes(result: dict[str, Any]) -> str:
    """CPU time of samples of robots' episodes by everything that makes them."""
    nums = list(result["cpu_ms"])
    lines = [
        line("CPU-ms a sample of two cameras, AV1 of 640 x 480", [f"{num} frame{'s' * (num != '1')} of each" for num in nums])
    ]
    lines.append("|---|" + "--:|" * len(nums))
    lines += costs(result, nums, lerobot="DataLoader + LeRobotDataset")
    told = (
        "In parentheses: times as fast as LeRobot. Frames are uint8; `floats` are float32, as `from_torch` hands them out. "
        "A key frame every 2; shuffled batches of 32, two threads or workers."
    )
    return "\n".join([*lines, "", told])


def sounds(result: dict[str, Any]) -> str:
    """CPU time of crops of sound by everything that makes them, resuming, and the index."""
    titles = {"torchcodec": "DataLoader + torchcodec", "soundfile": "DataLoader + soundfile", "datapipe": "datapipe"}
    lines = [line("crops of 5 s from FLAC of 16 kHz", ["CPU-ms"]), "|---|--:|"]
    for name, cpu_ms in result["cpu_ms"].items():
        ratio = result["speed"].get(name)
        lines.append(line(titles[name], [f"{cpu_ms:.2f}" + (f" ({interval(ratio)})" if ratio else "")]))
    resume, index = result["resume"], result["index"]
    seconds = "; ".join(f"{name}: {one['resume_s']:.2f} s" for name, one in resume.items() if isinstance(one, dict))
    told = (
        "In parentheses: times the CPU time of datapipe's. Shuffled batches of 64, two threads or workers. From a state in "
        f"mid-epoch to the next batch, among {resume['utterances']:,} utterances: {seconds}. An index of files is made at "
        f"{index['files_per_s']:,} a second."
    )
    return "\n".join([*lines, "", told])


def conversations(result: dict[str, Any]) -> str:
    """Rates of batches of conversations, the CPU time of an image alone, plans and ranks."""
    titles = {"transformers": "DataLoader, transformers' processor in its collate", "datapipe": "datapipe, packed rows of 8,192"}
    lines = [
        line("photographs inside conversations, two threads or workers", ["conversations/s", "images/s", "CPU-ms an image alone"])
    ]
    lines.append("|---|--:|--:|--:|")
    for name, title in titles.items():
        rates = [f"{result[what][name]:,.0f}" for what in ("samples_per_s", "images_per_s")]
        ratios = {"batches": rates[0], "pixels": f"{result['cpu_ms_per_image'][f'{name} pixels']:.2f}"}
        if name == "datapipe":
            ratios = {what: f"{value} ({interval(result['speed'][what])})" for what, value in ratios.items()}
        lines.append(line(title, [ratios["batches"], rates[1], ratios["pixels"]]))
    planned, efficiency = result["planned"], result["planned"]["efficiency"]
    stages = ", ".join(f"{name} {ms:.2f} ms" for name, ms in result["stages_ms"].items())
    told = (
        "Qwen2-VL's patches in float32, equal bit for bit; one to three photographs a conversation. An image alone: from its JPEG"
        f" to these numbers, in one thread: {stages}. Resizing is the same code in both, and the numbers, 4.7 kB a patch, are"
        " written at the rate of memory; as levels, on their way to a device, they are an eighth."
        f" {planned['per_s']:,} conversations a second are planned, in rows that are"
        f" {planned['fill']:.1%} full; {result['converted_per_s']:,.0f} a second are converted. Of 64 ranks with 4 micro-batches,"
        f' dealt by `balance="step"`, the work is {efficiency["language"]:.1%} of the busiest rank\'s for the language, and'
        f" {efficiency['vision']:.1%} for the vision tower (by the plan of a million made-up conversations). A state has"
        f" {result['resumed']['state_nbytes']} bytes."
    )
    return "\n".join([*lines, "", told])
