"""Pages of runs in a real browser: what they show, and what a click, a key and a search change."""

import pytest

from tests.report.browser import CHROMIUM, DRIVER, browser
from tests.report.make import make_run

pytestmark = pytest.mark.slow
NONE = "NO CHROMIUM WITH ITS DRIVER HERE: THE PAGES WERE NOT OPENED (apt install chromium-driver)"


@pytest.fixture(scope="module")
def window():
    if CHROMIUM is None or DRIVER is None:
        pytest.skip(NONE)
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("page") / "run")


CURVES = '[...document.querySelectorAll("#charts figure")[0].querySelectorAll("g[data-label]")]'
LEGEND = "#charts figure:first-of-type .legend button:first-of-type"
AXIS = '[...document.querySelectorAll("#charts figure:first-of-type svg text[text-anchor=middle]")]'
ANSWERS = '[...document.querySelectorAll("#tokens .answer")]'


def test_a_click_in_a_legend_turns_a_curve_off_and_on(window, run):
    window.open(run.report)
    assert window.js(f"{CURVES}.map(g => g.dataset.label)") == ["greedy", "sampled"]
    assert window.text(LEGEND).split() == ["greedy", "0.8"]
    for labels, pressed in ((["sampled"], "false"), (["greedy", "sampled"], "true")):
        window.click(LEGEND)
        assert window.js(f"{CURVES}.map(g => g.dataset.label)") == labels
        assert window.js(f"document.querySelector('{LEGEND}').ariaPressed") == pressed
    assert window.errors() == []


def test_a_drag_zooms_all_charts_and_a_key_shows_all_again(window, run):
    window.open(run.report)
    whole = window.js(f"{AXIS}.map(t => t.textContent)")
    window.hover("#charts figure:first-of-type > svg", drag=120)
    part = window.js(f"{AXIS}.map(t => t.textContent)")
    assert (whole[0], part[0] != "0") == ("0", True)
    assert not window.js('document.getElementById("reset").disabled')
    window.write("#charts figure:first-of-type > svg", "0")
    assert window.js(f"{AXIS}.map(t => t.textContent)") == whole
    window.write("#charts figure:first-of-type > svg", "\ue014")  # the right arrow
    assert "at 0 completions" in window.text("#charts figcaption")
    window.write("#smoothing", "\ue014" * 5)
    assert "smoothing 10 %" in window.text("#charts .bar").replace("\n", " ")
    assert window.errors() == []


def test_a_token_shows_its_values_under_the_pointer_and_keeps_them_when_clicked(window, run):
    window.open(run.report)
    seen = window.js(f"{ANSWERS}.map(a => a.innerText)")
    assert len(seen) == 4
    assert "reward 1.000, advantage 0.750, drawn 2 steps before" in seen[0]  # the largest ratio
    token = '#tokens .answer:first-of-type [data-token="4"]'
    window.hover(token)
    shown = window.text("#token-detail")
    figures = "ratio 3.4903 (log +1.250), log π −0.250, log μ −1.500"
    assert shown.startswith(f"“ 7”, token 5 of 9: {figures}")
    assert shown.endswith("advantage +0.750, clipped: the method removed its gradient.")
    window.click(token)
    window.hover("h1")
    assert window.text("#token-detail") == shown
    window.write("#tokens .answer:first-of-type .tokens", "\ue012")  # the left arrow
    shown = window.text("#token-detail")
    assert "“ =”, token 4 of 9: ratio 1.0000" in shown
    assert shown.endswith("not clipped.")
    style = "getComputedStyle(document.querySelector('{}')).backgroundColor"
    assert window.js(style.format(token)) != window.js(style.format('[data-token="3"]'))


def test_a_search_leaves_what_has_the_words_and_marks_them(window, run):
    window.open(run.report)
    window.write("#search", "DON'T kn")
    prompts = window.js(f"{ANSWERS}.map(a => a.querySelector('.prompt').innerText)")
    assert prompts == ["Bob sleeps."] * 2
    assert window.text("#token-count").startswith("2 of 4 completions with")
    marked = "[...document.querySelectorAll('#tokens .answer:first-of-type .match')]"
    assert window.js(f"{marked}.map(t => t.textContent)") == [" don't", " know"]
    window.write("#search", "zzz")
    assert window.js(f"{ANSWERS}.length") == 0


@pytest.mark.parametrize("dark", [False, True])
def test_a_page_fits_a_phone_and_its_texts_stand_out(window, run, dark):
    window.open(run.report, width=390, dark=dark)
    assert window.js("[innerWidth, document.scrollingElement.scrollWidth]") == [390, 390]
    assert window.js(CONTRAST) == []
    assert window.js(UNNAMED) == []


CONTRAST = """(() => {
  const part = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = (c) => 0.2126 * part(c[0]) + 0.7152 * part(c[1]) + 0.0722 * part(c[2]);
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const under = (element) => {
    const below = element.parentElement ? under(element.parentElement) : [255, 255, 255];
    const [r, g, b, a = 1] = numbers(getComputedStyle(element).backgroundColor);
    return [r, g, b].map((c, n) => a * c + (1 - a) * below[n]);
  };
  const texts = [...document.querySelectorAll("body *")].filter((e) =>
    !["SCRIPT", "STYLE"].includes(e.tagName) && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()));
  return texts.filter((e) => {
    const style = getComputedStyle(e);
    const [a, b] = [light(numbers(e.namespaceURI.includes("svg") ? style.fill : style.color)), light(under(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
  }).map((e) => e.outerHTML.slice(0, 120));
})()"""
"""Texts below the contrast of WCAG AA (https://www.w3.org/TR/WCAG22/#contrast-minimum)."""
UNNAMED = """[...document.querySelectorAll("input, select, button, svg[tabindex], .tokens")].filter((e) =>
  !(e.ariaLabel || e.labels?.[0]?.innerText.trim() || e.innerText?.trim())).map((e) => e.outerHTML)"""
"""Controls that a screen reader has no name for."""
