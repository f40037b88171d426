"""Pictures of the web page for the documentation, from a real run in a real browser.

    python docs/screenshots.py [--out docs/images] [--chromium /usr/bin/chromium]

Starts a federation of three parties on this machine, logs in, starts the demo's run from the page, and takes it from
there. Needs Chromium and the development dependencies.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from parley.local import LocalFederation
from parley.splitting import split_dataset

PARTIES = ("bank", "shop", "telco")
SPEC = (resources.files("parley") / "demo.yaml").read_text()
MISTAKEN = SPEC.replace("regularisation:", "regularization:").replace("epsilon: 6,", "epsilon: -6,")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
WIDE = {"viewport": {"width": 1280, "height": 800}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}
SECONDS = 1000.0
"""Of Playwright, which counts milliseconds."""


@contextlib.contextmanager
def federation() -> Iterator[LocalFederation]:
    """Three parties with a third of each image, and a coordinator with the labels and the page."""
    with tempfile.TemporaryDirectory(prefix="parley-screenshots-") as name:
        folder = Path(name)
        split_dataset("digits", PARTIES, folder / "data")
        tables = {party: {"train": {"path": folder / "data" / f"{party}.parquet"}} for party in PARTIES}
        labels = {"train": {"path": folder / "data" / "labels.parquet"}}
        web = {"web": {"listen": "127.0.0.1:0"}}
        with LocalFederation(folder, tables, labels, coordinator_options=web, ready_seconds=300) as local:
            yield local


def log_in(browser: Browser, local: LocalFederation, **settings: object) -> Page:
    """A fresh browser window on the page, logged in."""
    state = local.directory / "state" / "coordinator"
    context = browser.new_context(ignore_https_errors=True, **settings)  # type: ignore[arg-type]
    context.set_default_timeout(120 * SECONDS)
    page = context.new_page()
    page.goto((state / "web.address").read_text().strip())
    page.fill("#token", (state / "web.token").read_text().strip())
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector("main h1")
    return page


def start(page: Page, spec: str) -> None:
    """Start a run as a person does."""
    page.click("nav >> text=New run")
    page.fill("#spec", spec)
    page.click("#start:enabled")
    page.wait_for_selector(".chip")


def take(out: Path, browser: Browser, local: LocalFederation) -> None:
    """Every picture."""
    page = log_in(browser, local, **WIDE)
    page.click("nav >> text=New run")
    page.fill("#spec", MISTAKEN)
    page.wait_for_selector(".problems li")
    page.screenshot(path=out / "page-new-run.png", full_page=True)
    start(page, SPEC.replace("steps: 30", "steps: 400"))
    page.wait_for_selector(".legend b")
    page.wait_for_timeout(3 * SECONDS)
    page.click("#cancel")
    page.wait_for_selector(".chip.CANCELLED")
    start(page, SPEC)
    run = page.url
    page.wait_for_selector(".chip.COMPLETED")
    page.wait_for_selector(".panel details table", state="attached")
    page.wait_for_timeout(1 * SECONDS)
    page.screenshot(path=out / "page-run.png", clip={"x": 0, "y": 0, "width": 1280, "height": 1240}, full_page=True)
    card = page.get_by_text("Model card").get_attribute("href")
    page.click("nav >> text=Parties")
    page.wait_for_selector("table")
    page.screenshot(path=out / "page-parties.png", clip={"x": 0, "y": 0, "width": 1280, "height": 440})
    page.click("nav >> text=Runs")
    page.wait_for_selector("table a")
    page.screenshot(path=out / "page-runs.png", clip={"x": 0, "y": 0, "width": 1280, "height": 330})
    page.goto(f"{page.url.split('#')[0].rstrip('/')}{card}")
    page.screenshot(path=out / "model-card.png", clip={"x": 0, "y": 0, "width": 1280, "height": 1500}, full_page=True)
    for name, settings, height in (
        ("page-run-dark", {**WIDE, "color_scheme": "dark"}, 1240),
        ("page-run-phone", PHONE, 1500),
    ):
        other = log_in(browser, local, **settings)
        other.goto(run)
        other.wait_for_selector(".legend b")
        other.wait_for_timeout(2 * SECONDS)
        width = settings["viewport"]["width"]  # type: ignore[index]
        other.screenshot(
            path=out / f"{name}.png", clip={"x": 0, "y": 0, "width": width, "height": height}, full_page=True
        )


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "images", help="where the pictures go")
    parser.add_argument("--chromium", default="/usr/bin/chromium", help="the browser")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with federation() as local, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=given.chromium, args=FLAGS)
        take(given.out, browser, local)
        browser.close()


if __name__ == "__main__":
    main()
