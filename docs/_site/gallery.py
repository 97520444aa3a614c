"""Draw the pictures of docs/gallery.md: the commands that the page shows, carried out in an empty folder.

python docs/_site/gallery.py
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
PAGE, IMAGES = ROOT / "docs" / "gallery.md", ROOT / "docs" / "images"
_WIDTH, _COLOURS = 1000, 128  # of a picture on the page: pixels at most, and colours


def main() -> None:
    """Type the page's commands, and keep what they draw."""
    commands = "\n".join(re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        subprocess.run(["bash", "-ec", commands], cwd=folder, check=True, stdout=sys.stderr)
        for path in sorted(Path(folder).glob("gallery-*.png")):
            with Image.open(path) as found:
                picture = found.convert("RGB")
            picture.thumbnail((_WIDTH, 10 * _WIDTH), Image.Resampling.LANCZOS)
            picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(IMAGES / path.name, optimize=True)
            print(f"wrote {IMAGES / path.name}")


if __name__ == "__main__":
    main()
