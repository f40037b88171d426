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


def spec(steps=6, **labels):
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
        "privacy": {"labels": labels or {"mechanism": "once", "epsilon": 5, "budget": 5}},
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
    (folder / "damaged.csv").write_text("id,a\n1,2,3\n")
    tables["shop"]["damaged"] = {"path": folder / "damaged.csv"}
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
    page.wait_for_selector(".tile:has-text('ε of each label') b:text-is('5')")
    assert page.locator("section:not(#quality) canvas").count() == 2, "loss and score are drawn"
    assert page.locator(".log li").first.inner_text().endswith("completed")
    page.wait_for_selector("text=the coordinator sees only the sum over all 3 parties")
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
    for link in (None, "Runs", "Parties", "Deployments", "Audit", "New run"):
        if link:
            page.click(f"nav >> text={link}")
            page.wait_for_selector("main h1")
        wide = page.evaluate("document.documentElement.scrollWidth")  # innerWidth grows with what sticks out
        assert wide <= PHONE["viewport"]["width"], link
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


def test_how_well_a_model_does_is_drawn_and_told(visit):
    page = visit()
    start(page, spec() + "evaluation: {resamples: 100}\n")
    page.wait_for_selector(".chip.COMPLETED")
    quality = page.locator("#quality")
    quality.locator("canvas").nth(2).wait_for()
    assert quality.locator("h3").all_inner_texts() == [
        "Confusion matrix above 0.5",
        "95 % intervals",
        "ROC",
        "Precision and recall",
        "Calibration",
    ]
    assert "0" not in quality.locator("> div").first.evaluate(
        "part => [...part.childNodes].map((one) => one.nodeValue)"
    )
    counts = quality.locator("table").first.locator("td.number").all_inner_texts()
    assert sum(map(int, counts)) == 114, "a fifth of all rows"
    chart = quality.locator("[role=img]").first
    assert chart.get_attribute("aria-label").startswith("ROC: false positives 0, true positives 0")
    chart.focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.ariaLabel").startswith("Precision and recall: recall 0")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", "keys show where they are"
    assert "threshold" not in page.locator(".legend").nth(1).inner_text()


def test_what_is_deployed_is_shown_at_a_desk_and_on_a_phone(visit, served):
    page = visit()
    page.click("nav >> text=Deployments")
    page.wait_for_selector("text=Nothing is deployed")
    start(page, spec())
    page.wait_for_selector(".chip.COMPLETED")
    run_id = page.locator("h1").inner_text()
    with served.connect() as client:
        deployed = client.deploy(run_id, "churn")
        client.deploy(run_id, "churn")
        deployed.predict(client.run(run_id).predict().ids[0])
        for settings in ({}, PHONE):
            page = visit(**settings)
            page.click("nav >> text=Deployments")
            row = page.locator("tr", has_text="churn")
            row.wait_for()
            told = row.inner_text()
            assert "version 2, before it 1" in told
            assert "serving" in told
            assert row.locator("td.number").all_inner_texts() == ["1", "1"]
            row.locator("a").focus()
            page.wait_for_timeout(6000)  # a refresh
            assert focused(page) == run_id
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= page.viewport_size["width"]
            page.keyboard.press("Enter")
            page.wait_for_selector(f"h1 >> text={run_id}")
        deployed.undeploy()


def test_whoever_logs_out_is_out(visit):
    page = visit()
    page.click("#logout")
    page.wait_for_selector("#token")
    page.goto(page.url.split("#")[0] + "api/runs")
    assert "NOT_LOGGED_IN" in page.content()


def test_a_run_without_a_budget_says_so_and_prints_no_null(visit):
    page = visit()
    start(page, spec(mechanism="once", epsilon=5))
    page.wait_for_selector(".chip.COMPLETED")
    page.wait_for_selector("text=no budget set")
    assert "null" not in page.locator("main").inner_text()


def test_a_partys_other_table_is_no_trouble_of_this_run(visit):
    page = visit()
    start(page, spec())
    shop = page.locator("section", has=page.locator("h2", has_text="Parties")).locator("tr", has_text="shop")
    shop.locator(".chip").wait_for()
    assert shop.locator(".chip").inner_text() == "up"
    assert "damaged" not in shop.inner_text()
    page.click("nav >> text=Parties")
    shop = page.locator("tr", has_text="shop")
    shop.locator(".chip.odd").wait_for()
    assert "damaged: cannot be loaded" in shop.inner_text()
    assert page.locator("tr", has_text="bank").locator(".chip").inner_text() == "up"


def test_what_leaves_is_told_in_sentences_with_the_protocol_behind_a_fold(visit):
    page = visit()
    start(page, spec())
    panel = page.locator("section", has=page.locator("h2", has_text="What leaves an organisation"))
    panel.locator("li").first.wait_for()
    told = panel.inner_text()
    assert "ε = 5" in told
    assert "Embedding.sum" not in told
    assert "DirectionalShare" not in panel.text_content(), "this run has none"
    panel.locator("summary").click()
    assert panel.locator("code", has_text="bambi.v1.Embedding.sum").is_visible()
    assert page.get_by_text("Spec", exact=True).is_visible()


def focused(page):
    return page.evaluate("document.activeElement.id || document.activeElement.textContent")


def test_whoever_uses_the_keyboard_keeps_the_focus_while_the_page_refreshes(visit):
    page = visit()
    start(page, spec(steps=400))
    page.wait_for_selector(".legend b")
    page.focus("#cancel")
    page.wait_for_timeout(3000)
    assert focused(page) == "cancel"
    page.keyboard.press("Enter")
    page.wait_for_selector("#resume")
    assert focused(page) == "resume", "the button that stands in its place"
    page.click("nav >> text=Runs")
    link = page.locator("table a").nth(1)
    link.focus()
    name = link.inner_text()
    page.wait_for_timeout(5000)  # two refreshes
    assert focused(page) == name


def test_the_current_page_is_marked_for_those_who_do_not_see_it(visit):
    page = visit()
    for link in ("Parties", "Deployments", "New run", "Runs"):
        page.click(f"nav >> text={link}")
        page.wait_for_selector(f"nav a[aria-current=page] >> text={link}")
        assert page.locator("nav a[aria-current]").count() == 1


def test_curves_are_told_in_words_and_read_by_pointer_and_keys(visit):
    page = visit()
    start(page, spec())
    page.wait_for_selector(".chip.COMPLETED")
    chart = page.locator("[role=img]", has=page.locator("canvas")).first
    assert re.search(r"Loss, steps \d+ to 6: .*loss from [\d.]+ to [\d.]+", chart.get_attribute("aria-label"))
    legend = page.locator(".legend").first
    chart.focus()
    page.keyboard.press("ArrowRight")
    assert legend.inner_text().startswith("at step")
    first = legend.inner_text()
    page.keyboard.press("End")
    assert legend.inner_text() != first
    chart.locator(".u-over").hover(position={"x": 20, "y": 60})
    assert legend.inner_text().startswith("at step")
    page.locator("summary", has_text="Values").first.click()
    assert page.locator(".values tbody tr").count() >= 3


def test_a_part_of_a_curve_is_looked_at_closely_and_the_whole_again(visit):
    page = visit()
    start(page, spec(steps=30))
    page.wait_for_selector(".chip.COMPLETED")
    over = page.locator(".u-over").first
    box = over.bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60, steps=5)
    page.mouse.up()
    button = page.get_by_role("button", name="Show all steps").first
    button.wait_for()
    button.click()
    assert not button.is_visible()


def test_a_state_is_no_wider_on_a_phone_than_its_word(visit):
    page = visit(**PHONE)
    start(page, spec())
    page.wait_for_selector(".chip.COMPLETED")
    page.click("nav >> text=Runs")
    chip = page.locator("table .chip").first
    chip.wait_for()
    assert chip.bounding_box()["width"] < 130


CONTRASTS = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const paper = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, a = 1] = channels(getComputedStyle(at).backgroundColor);
      if (a > 0.99) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest("[disabled], canvas, .hidden")) continue;
    const [one, two] = [light(channels(getComputedStyle(element).color)), light(paper(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (two + 0.05);
    const name = `${element.tagName}.${element.className} ${element.textContent.trim().slice(0, 20)}`;
    if (ratio < 4.5) found.push(`${name}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_paper(visit, scheme):
    page = visit(color_scheme=scheme)
    start(page, spec())
    page.wait_for_selector(".chip.COMPLETED")
    page.wait_for_selector("section h2:has-text('Parties')")
    faint = page.evaluate(CONTRASTS)
    for link in ("Runs", "Parties", "New run"):
        page.click(f"nav >> text={link}")
        page.wait_for_timeout(1500)
        faint += page.evaluate(CONTRASTS)
    assert faint == []


def test_runs_are_found_sorted_tagged_compared_predicted_with_and_deleted(visit):
    page = visit(viewport={"width": 1280, "height": 900})
    for steps in (4, 6):
        start(page, spec(steps))
        page.wait_for_selector(".chip.COMPLETED")
    shown = os.environ.get("PARLEY_PICTURES")
    run = page.locator("h1").inner_text()
    page.fill("#tag", "baseline")
    page.press("#tag", "Enter")
    page.wait_for_selector(".tag:has-text('baseline')")
    page.fill("#ids", "1, 2, 3")
    page.click("#predict")
    page.wait_for_selector("text=3 rows")
    assert page.locator("a#csv").get_attribute("download") == f"{run}-predictions.csv"
    if shown:
        page.screenshot(path=f"{shown}/run.png", full_page=True)
    page.click("nav >> text=Runs")
    page.fill("#search", "baseline")
    page.wait_for_selector("tbody:not(:has(tr + tr))")
    assert run in page.locator("tbody tr").inner_text()
    page.fill("#search", "")
    page.wait_for_selector("tbody:has(tr + tr)")
    page.get_by_role("button", name="Started").click()
    page.wait_for_selector("th:has-text('Started ↑')")
    assert run in page.locator("tbody tr").last.inner_text()
    for box in page.locator("tbody input[type=checkbox]").all()[-2:]:
        box.check()
    if shown:
        page.screenshot(path=f"{shown}/runs.png", full_page=True)
    page.click("#compare")
    page.wait_for_selector("td:has-text('train.upper.steps')")
    page.wait_for_selector(f".legend >> text={run} test accuracy")
    if shown:
        page.screenshot(path=f"{shown}/compare.png", full_page=True)
    page.goto(page.url.split("#")[0] + f"#/run/{run}")
    page.on("dialog", lambda dialog: dialog.accept())
    page.click("#delete")
    page.wait_for_selector("h1:text-is('Runs')")
    page.fill("#search", run)
    page.wait_for_selector("text=No run has such a name or tag")


def test_the_page_shows_what_an_exploration_found_and_what_a_regression_says_of_each_column(chromium, tmp_path):
    """Coefficients stand beside their variance inflation, and figures of columns before the lists of bins and pairs."""
    split_dataset("breast_cancer", PARTIES, tmp_path / "data", standardise=True)
    tables = {party: {"train": {"path": tmp_path / "data" / f"{party}.parquet"}} for party in PARTIES}
    labels = {"train": {"path": tmp_path / "data" / "labels.parquet"}}
    policy = {"coefficients": "columns", "correlations": "all"}
    web = {"web": {"listen": "127.0.0.1:0"}}
    with (
        LocalFederation(tmp_path, tables, labels, policy=policy, coordinator_options=web, ready_seconds=240) as local,
        local.connect() as client,
    ):
        runs = []
        for train in (
            "{algorithm: explore, bins: 4, against_label: true, correlations: true}",
            "{algorithm: glm, family: linear}",
        ):
            mechanism = 'privacy: {labels: {mechanism: "off"}}'
            runs.append(client.start(f"{{name: shown, parties: [bank, shop, telco], train: {train}, {mechanism}}}"))
            runs[-1].result()
        state = local.directory / "state" / "coordinator"
        context = chromium.new_context(ignore_https_errors=True)
        page = context.new_page()
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((state / "web.address").read_text().strip())
        page.fill("#token", (state / "web.token").read_text().strip())
        page.get_by_role("button", name="Log in").click()
        page.wait_for_selector("main h1")
        base = page.url.split("#")[0]
        page.goto(f"{base}#/run/{runs[0].run_id}")
        page.wait_for_selector("h2:text-is('Columns')")
        heads = page.locator("table:has(caption:text-is('Columns')) th").all_inner_texts()
        assert [head.lower() for head in heads[:5]] == ["party", "column", "iv", "psi", "vif"]
        assert not any("correlation" in head or "bin" in head for head in heads)
        page.click("summary:text-is('Bins')")
        page.wait_for_selector("table:has(caption:text-is('Bins')) meter")
        page.click("summary:has-text('Correlations')")
        page.wait_for_selector("table:has(caption:text-is('Correlations')) td")
        page.goto(f"{base}#/run/{runs[1].run_id}")
        page.wait_for_selector("h2:text-is('Coefficients')")
        heads = page.locator("table:has(caption:text-is('Coefficients')) th").all_inner_texts()
        assert [head.lower() for head in heads[-5:]] == ["coefficient", "standard error", "p", "95 % interval", "vif"]
        context.close()
        assert errors == []
