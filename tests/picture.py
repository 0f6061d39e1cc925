"""Takes the README's picture: a report with every verdict in it, as a browser shows it. Usage: picture.py FILE"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from scripts import page
from tests import examples


def main() -> None:
    """Write the picture to the file named by the first argument."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        report = Path(folder, "report.html")
        report.write_text(page.html(examples.calm(examples.every_verdict())), encoding="utf-8")
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        shot = browser.new_page(viewport={"width": 1200, "height": 560})
        shot.goto(report.as_uri())
        shot.screenshot(path=target)
        browser.close()


if __name__ == "__main__":
    main()
