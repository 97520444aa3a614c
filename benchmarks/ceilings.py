"""Make what docs/diagnose.md shows of `datapipe bench --ceilings`: the text, and the same as a picture.

python -m benchmarks.ceilings            # measures generated photographs again (half a minute), and draws
python -m benchmarks.ceilings --keep     # writes and draws the committed result again
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import harness
from benchmarks.environment import ROOT
from benchmarks.marked import replace_marked
from benchmarks.plots import LIMIT, OURS, THEIRS
from datapipe.core.environment import importing_as_here
from datapipe.diagnostics.ceilings.roofline import Roofline, as_text
from datapipe.testing.synthetic_images import make_image_folder

MANUAL, PICTURE = ROOT / "docs" / "diagnose.md", ROOT / "docs" / "images" / "ceilings.png"
NUM_IMAGES, DEMAND_PER_S = 600, 2500.0
_COMMAND = ("bench", "photos", "--ceilings", "--demand", f"{DEMAND_PER_S:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ceilings")
    parser.add_argument("--keep", action="store_true", help="do not measure: take the committed result")
    parser.add_argument("--results", type=Path, default=harness.RESULTS)
    arguments = parser.parse_args()
    if not arguments.keep:
        harness.save("ceilings", "benchmarks.ceilings", {"roofline": measure()}, results=arguments.results)
    found = msgspec.convert(json.loads((arguments.results / "ceilings.json").read_text())["roofline"], Roofline)
    MANUAL.write_text(with_text(MANUAL.read_text(), found))
    draw(found, PICTURE)
    print(f"wrote {MANUAL} and {PICTURE}")


def measure() -> dict[str, Any]:
    """Run the command over generated photographs."""
    with tempfile.TemporaryDirectory() as scratch:
        make_image_folder(Path(scratch) / "photos", num_images=NUM_IMAGES, scale="imagenet")
        command = [sys.executable, "-m", "datapipe", *_COMMAND, "--json"]
        done = subprocess.run(command, cwd=scratch, env=importing_as_here(), check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def with_text(text: str, found: Roofline) -> str:
    """Return the manual with what the command prints."""
    shown = f"```\n$ datapipe {' '.join(_COMMAND)}\n{as_text(found)}\n```"
    return replace_marked(text, "ceilings", shown, where=str(MANUAL))


def draw(found: Roofline, path: Path) -> None:
    """Draw the ceilings as bars on a logarithmic axis, with what was measured, and what the model takes, as lines over them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    known = found.known[::-1]
    figure, axes = pyplot.subplots(figsize=(9, 0.55 * len(known) + 1.3), layout="constrained")
    bars = axes.barh([one.part for one, _ in known], [per_s for _, per_s in known], color=THEIRS, height=0.62)
    axes.bar_label(bars, [f"{per_s:,.0f}" for _, per_s in known], padding=4, fontsize=9)
    axes.axvline(found.measured_per_s, color=OURS, lw=2, label=f"measured: {found.measured_per_s:,.0f}")
    if found.demand_per_s is not None:
        axes.axvline(found.demand_per_s, color=LIMIT, lw=2, ls="--", label=f"the model takes: {found.demand_per_s:,.0f}")
    axes.set(xscale="log", xlabel="samples per second")
    axes.set_xlim(found.measured_per_s / 4, max(per_s for _, per_s in known) * 4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
