"""The web page in a real browser: started, watched and read as a person does, at a desk and on a phone."""

import os
import re
import shutil

import pytest
import yaml

from parley.local import LocalFederation
from parley.splitting import split_dataset

pytestmark = pytest.mark.e2e

PARTIES = ("bank", "shop", "telco")
CHROMIUM = os.environ.get("PARLEY_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def spec(steps=6):
    content = {
        "name": "browsed",
        "parties": list(PARTIES),
        "train": {
            "algorithm": "bambi",
            "loss": "logistic",
            "model": {"kind": "linear"},
            "upper": {"steps": steps, "batch": 64},
            "lower": {"steps": 1, "batch": 64},
        },
        "privacy": {"labels": {"mechanism": "once", "epsilon": 5, "budget": 5}},
        "evaluate_every": 2,
    }
    return yaml.safe_dump(content, sort_keys=False)


@pytest.fixture(scope="module")
def chromium():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: install one, or name it in PARLEY_CHROMIUM")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def served(chromium, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    split_dataset("breast_cancer", PARTIES, folder / "data", standardise=True)
    tables = {party: {"train": {"path": folder / "data" / f"{party}.parquet"}} for party in PARTIES}
    labels = {"train": {"path": folder / "data" / "labels.parquet"}}
    web = {"web": {"listen": "127.0.0.1:0"}}
    with LocalFederation(folder, tables, labels, coordinator_options=web, ready_seconds=240) as local:
        yield local


@pytest.fixture
def visit(chromium, served):
    """Open the page, logged in; every error that a script raises fails the test."""
    opened, errors = [], []
    state = served.directory / "state" / "coordinator"

    def opening(**settings):
        context = chromium.new_context(ignore_https_errors=True, **settings)
        context.set_default_timeout(60_000)
        opened.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if "Content Security" in line.text else None)
        page.goto((state / "web.address").read_text().strip())
        page.fill("#token", (state / "web.token").read_text().strip())
        page.get_by_role("button", name="Log in").click()
        page.wait_for_selector("main h1")
        return page

    yield opening
    for context in opened:
        context.close()
    assert errors == []


def start(page, text):
    page.click("nav >> text=New run")
    page.fill("#spec", text)
    page.click("#start:enabled")
    page.wait_for_selector("h1:has-text('browsed-')")


def test_a_run_is_started_watched_and_its_result_read(visit):
    page = visit()
    start(page, spec())
    page.wait_for_selector(".chip.COMPLETED")
    page.wait_for_selector(".legend >> text=test accuracy")
    accuracy = re.search(r"([\d.]+) %", page.locator(".tile", has_text="test accuracy").inner_text())
    assert 0 < float(accuracy[1]) <= 100
    assert page.locator(".tile", has_text="ε of each label").locator("b").inner_text() == "5"
    assert page.locator("canvas").count() == 2, "loss and score are drawn"
    assert page.locator(".log li").first.inner_text().endswith("completed")
    page.wait_for_selector("code:has-text('bambi.v1.Embedding.sum')")
    with page.expect_popup() as popup:
        page.click("text=Model card")
    assert popup.value.locator("h2", has_text="Privacy of the labels").is_visible()
    page.click("nav >> text=Runs")
    assert page.locator("tr", has_text="browsed-").first.locator(".chip").inner_text() == "completed"


def test_a_run_is_cancelled_and_resumed_with_buttons(visit):
    page = visit()
    start(page, spec(steps=400))
    page.wait_for_selector(".legend b")
    page.click("#cancel")
    page.wait_for_selector(".chip.CANCELLED")
    page.click("#resume")
    page.wait_for_selector(".chip.RUNNING")
    page.click("#cancel")
    page.wait_for_selector(".chip.CANCELLED")


def test_mistakes_are_shown_beside_their_lines(visit):
    page = visit()
    page.click("nav >> text=New run")
    page.fill("#spec", spec() + "extra: 1\n")
    last = spec().count("\n") + 1
    problem = page.locator(".problems li")
    problem.wait_for()
    assert problem.inner_text().startswith(f"line {last}")
    assert page.locator("#start").is_disabled()
    page.click(f"text=line {last}")
    assert page.evaluate("getSelection().toString()") == "extra: 1"


def test_a_file_is_uploaded(visit, tmp_path):
    (tmp_path / "spec.yaml").write_text(spec())
    page = visit()
    page.click("nav >> text=New run")
    page.set_input_files("#file", tmp_path / "spec.yaml")
    page.wait_for_selector("text=The spec is valid")
    assert page.input_value("#spec") == spec()


def test_a_phone_shows_everything_without_scrolling_sideways(visit):
    page = visit(**PHONE)
    start(page, spec())
    page.wait_for_selector(".chip.COMPLETED")
    page.wait_for_selector("section h2:has-text('Parties')")
    for link in (None, "Runs", "Parties", "New run"):
        if link:
            page.click(f"nav >> text={link}")
            page.wait_for_selector("main h1")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), link
    assert page.get_by_role("button", name="Log out").is_visible()


def test_dark_is_dark_and_light_is_light(visit):
    def brightness(scheme):
        page = visit(color_scheme=scheme)
        paper, ink = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
        return sum(map(int, re.findall(r"\d+", paper)[:3])), sum(map(int, re.findall(r"\d+", ink)[:3]))

    paper, ink = brightness("dark")
    assert paper < 150 < 500 < ink
    paper, ink = brightness("light")
    assert ink < 150 < 500 < paper


def test_whoever_logs_out_is_out(visit):
    page = visit()
    page.click("#logout")
    page.wait_for_selector("#token")
    page.goto(page.url.split("#")[0] + "api/runs")
    assert "NOT_LOGGED_IN" in page.content()
