"""A picture of one image in a report, with its heatmaps: screenshot.py REPORT NUMBER PICTURE."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, MARGIN = 920, 12

report, number, picture = sys.argv[1:]
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": WIDTH, "height": 1200})
    page.goto(Path(report).resolve().as_uri())
    card = page.locator(f"#image-{number}")
    card.locator("summary").click()
    box = card.bounding_box()
    if box is None:
        sys.exit(f"{report}: has no image {number}")
    height = box["height"] + 2 * MARGIN
    clip = {"x": 0, "y": box["y"] + page.evaluate("scrollY") - MARGIN, "width": WIDTH, "height": height}
    page.screenshot(path=picture, clip=clip, full_page=True)
