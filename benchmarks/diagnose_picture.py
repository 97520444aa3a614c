"""Make what docs/diagnose.md and README.md show of `datapipe diagnose`: the screen as text, the page as a picture.

python -m benchmarks.diagnose_picture                 # diagnose again (two minutes), and write all of them
python -m benchmarks.diagnose_picture --keep          # draw the committed document again
python -m benchmarks.diagnose_picture --keep --check  # exit 1 if a page says anything else than that document

The document is `docs/images/diagnosis.json`. The picture needs Chromium (CHROMIUM names another).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.environment import ROOT
from benchmarks.marked import replace_marked
from datapipe.diagnostics.report.page import page
from datapipe.diagnostics.report.screen import screen
from datapipe.testing.synthetic_images import make_image_folder

DOCUMENT, PICTURE = (ROOT / name for name in ("docs/images/diagnosis.json", "docs/images/diagnosis.png"))
MANUAL, README = ROOT / "docs" / "diagnose.md", ROOT / "README.md"
_NUM_IMAGES, _TRIALS_S = 600, 30
_WIDTH = 1200  # pixels
_NUM_COLOURS = 256
_LAST = "What would help"  # section of the page that the picture ends with


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnose_picture")
    parser.add_argument("--keep", action="store_true", help="do not diagnose anew: take the committed document")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page differs")
    arguments = parser.parse_args()
    if not arguments.keep:
        diagnose(DOCUMENT)
    document = json.loads(DOCUMENT.read_text())
    for path in (MANUAL, README):
        text = path.read_text()
        updated = with_transcript(text, document, where=path)
        if arguments.check and updated != text:
            raise SystemExit(f"{path}: its diagnosis is not {DOCUMENT}; run python -m benchmarks.diagnose_picture --keep")
        if not arguments.check:
            path.write_text(updated)
    if not arguments.check:
        draw(document, PICTURE)
        print(f"wrote {MANUAL}, {README} and {PICTURE} ({PICTURE.stat().st_size / 1e3:.0f} kB)")


def diagnose(destination: Path) -> None:
    """Run the script over generated photographs, under `datapipe diagnose`."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        make_image_folder(directory / "photos", num_images=_NUM_IMAGES, scale="imagenet")
        shutil.copy(ROOT / "benchmarks/diagnosed_train.py", directory / "train.py")
        options = ["--out", "out", "--no-html", "--trials", str(_TRIALS_S)]
        command = [sys.executable, "-m", "datapipe", "diagnose", *options, "train.py", "photos"]
        subprocess.run(command, cwd=directory, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
        destination.parent.mkdir(exist_ok=True)
        shutil.copy(directory / "out/diagnosis.json", destination)


def with_transcript(text: str, document: dict[str, Any], *, where: Path) -> str:
    """`text` with the document's screen between its markers, shortened for README.md. Raises SystemExit where it has none."""
    shown = screen(document, page="diagnosis/diagnosis.html")
    if where == README:
        shown = shortened(shown)
    transcript = f"```\n$ datapipe diagnose --out diagnosis {' '.join(document['command'])}\n{shown}\n```"
    return replace_marked(text, "diagnosis", transcript, where=str(where))


def shortened(shown: str) -> str:
    """Return the verdict, the stage at fault with the costliest ones, and the two best remedies with the code of the first."""
    lines = shown.split("\n")
    fault = next(number for number, line in enumerate(lines) if line.startswith("At fault"))
    remedies = next(number for number, line in enumerate(lines) if line.startswith(_LAST))
    second = next(number for number in range(remedies, len(lines)) if lines[number].startswith("  2."))
    kept = [lines[0], *lines[fault : fault + 4], "", *lines[remedies : second + 1]]
    return "\n".join([*kept, "  ...", lines[-1]])


def draw(document: dict[str, Any], picture: Path) -> None:
    """The page as it looks by day, down to what would help, as a PNG. Raises SystemExit where there is no Chromium."""
    from PIL import Image

    sys.path.insert(0, str(ROOT / "tests" / "diagnostics"))  # where Chromium is driven for the tests of the page
    driver: Any = importlib.import_module("report_chromium")
    chromium = driver.find_chromium()
    if chromium is None:
        raise SystemExit(f"none of {', '.join(driver.NAMES)} is installed; install one, or name it in CHROMIUM")
    end = f"[...document.querySelectorAll('section')].find((one) => one.innerText.startsWith('{_LAST}')).getBoundingClientRect()"
    with tempfile.TemporaryDirectory() as name, driver.browser(chromium) as tab:
        html, whole = Path(name) / "page.html", Path(name) / "page.png"
        html.write_text(page(document), encoding="utf-8")
        tab.open(html, width=_WIDTH)
        bottom = round(tab.value(f"{end}.bottom + window.scrollY"))
        tab.screenshot(whole)
        with Image.open(whole) as image:
            image.convert("RGB").crop((0, 0, _WIDTH, bottom + 12)).quantize(_NUM_COLOURS, dither=Image.Dither.NONE).save(
                picture, optimize=True
            )


if __name__ == "__main__":
    main()
