"""Takes the README's picture: a report with every verdict in it, as a browser shows it. Usage: picture.py FILE"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from scripts import page
from tests import examples
from tests.browser import chromium


def main() -> None:
    """Write the picture to the file named by the first argument."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        report = Path(folder, "report.html")
        report.write_text(page.html(examples.calm(examples.every_verdict())), encoding="utf-8")
        shot = browser.new_page(viewport={"width": 1200, "height": 560})
        shot.goto(report.as_uri())
        shot.screenshot(path=target)


if __name__ == "__main__":
    main()
