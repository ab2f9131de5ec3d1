"""The parts of the page answer to one another: grid, scatter, card, table, tiles, sentences, the address."""

from __future__ import annotations

import time

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

SELECTED = "return document.querySelector('#scatter').data[2].text[0]"


def test_a_cell_shows_its_head_everywhere(usual, findings):
    row = findings[findings["score"] == "induction"].sort_values("value").iloc[2]
    name = f"L{row['layer']}.H{row['head']}"
    assert usual.run(SELECTED) != name
    usual.one(f"#grid [data-head='{name}']").click()
    assert usual.run(SELECTED) == name
    point = usual.run("const {x, y} = document.querySelector('#scatter').data[2]; return [x[0], y[0]]")
    assert point[0] == pytest.approx(row["value"], rel=1e-3)
    assert usual.text("#card h3") == name
    assert f"{row['value']:.2f}" in usual.text("#card .ranges")
    assert "Induction" in usual.text("#card .badges")
    assert usual.one("#table tr[aria-selected=true]").get_attribute("data-head") == name
    assert usual.run("return location.hash") == f"#{name}"


def test_hovering_a_cell_marks_its_point_and_its_row_and_tells_its_numbers(usual, findings):
    row = findings[findings["score"] == "induction"].iloc[0]
    name = f"L{row['layer']}.H{row['head']}"
    ActionChains(usual.driver).move_to_element(usual.one(f"#grid [data-head='{name}']")).perform()
    assert [tr.get_attribute("data-head") for tr in usual.all("#table tr.hovered")] == [name]
    assert usual.one("#scatter-ring").is_displayed()
    told = usual.text("#tooltip")
    for part in (name, "KV head", "95", "chance", f"{row['value']:.2f}", "finding: induction"):
        assert part in told
    group = row["head"] // 3
    assert f"KV head {group}, shared by H{group * 3} to H{group * 3 + 2}" in told
    ActionChains(usual.driver).move_to_element(usual.one("#model")).perform()
    assert not usual.one("#tooltip").is_displayed()
    assert not usual.one("#scatter-ring").is_displayed()


def test_a_point_shows_its_head_everywhere(usual):
    script = """
      const area = document.querySelector('#scatter');
      area.scrollIntoView({block: 'center', behavior: 'instant'});
      const trace = area.data[1], i = trace.x.indexOf(Math.min(...trace.x)), {xaxis, yaxis} = area._fullLayout;
      const box = area.getBoundingClientRect();
      return [box.left + xaxis._offset + xaxis.l2p(trace.x[i]), box.top + yaxis._offset + yaxis.l2p(trace.y[i]),
        trace.customdata[i]];
    """
    x, y, index = usual.run(script)
    name = f"L{index // 9}.H{index % 9}"
    # Plotly hovers at most every few milliseconds and clicks on what it last hovered.
    for step in ("mouseMoved", "mouseMoved", "mousePressed", "mouseReleased"):
        event = {"type": step, "x": x, "y": y, "clickCount": 1, "button": "none" if step == "mouseMoved" else "left"}
        usual.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)
        time.sleep(0.1)
    assert usual.text("#card h3") == name
    assert name in usual.text("#tooltip")
    ring = usual.run("return document.querySelector('#grid [data-live=selected]').getAttribute('visibility')")
    assert ring == "visible"


def test_a_row_shows_its_head_also_from_the_keyboard(usual):
    rows = usual.all("#table tbody tr")
    rows[3].click()
    name = rows[3].get_attribute("data-head")
    assert usual.text("#card h3") == usual.run(SELECTED) == name
    usual.run("document.querySelector('#table tbody tr').focus()")
    keys = ActionChains(usual.driver)
    keys.send_keys(Keys.ARROW_DOWN).send_keys(Keys.ENTER).perform()
    assert usual.text("#card h3") == usual.run(SELECTED) == rows[1].get_attribute("data-head")


def test_arrow_keys_walk_the_grid(usual):
    usual.run("document.querySelector('#grid [data-head=\"L0.H0\"]').focus()")
    keys = ActionChains(usual.driver)
    keys.send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ENTER).perform()
    assert usual.text("#card h3") == "L1.H2"
    assert len(usual.all("#grid [tabindex='0']")) == 1


def column_of(page, column):
    cells = "return [...document.querySelectorAll('#table tbody tr')].map((row) => row.cells[arguments[0]].textContent)"
    return page.run(cells, column)


def values_of(page, column):
    return [float(text.split()[0].replace("−", "-")) for text in column_of(page, column) if text != "–"]


def test_the_table_sorts_and_says_so(usual):
    value = "#table th[data-column=value]"
    usual.one(f"{value} button").click()
    falling = values_of(usual, 1)
    assert falling == sorted(falling, reverse=True)
    assert usual.one(value).get_attribute("aria-sort") == "descending"
    usual.one(f"{value} button").click()
    assert values_of(usual, 1) == falling[::-1]
    assert usual.one(value).get_attribute("aria-sort") == "ascending"
    usual.one("#table th[data-column='single/zero/repeated'] button").click()
    column = usual.run("return [...document.querySelectorAll('#table th')].findIndex((th) => th.ariaSort)")
    effects = values_of(usual, column)
    assert len(effects) >= 6
    assert effects == sorted(effects, reverse=True)
    usual.one("#table th[data-column='single/zero/repeated'] button").click()
    assert values_of(usual, column) == effects[::-1]
    # What wasn't measured stays at the end, whichever way the rest is sorted.
    missing = [text == "–" for text in column_of(usual, column)]
    assert missing == sorted(missing)
    assert any(missing)


def test_the_table_filters(usual, findings):
    counts = findings.groupby("score").size()
    rows = "#table tbody tr[data-head]"
    assert len(usual.all(rows)) == counts["induction"]
    usual.choose("#table-score", "previous")
    assert {row.get_attribute("data-score") for row in usual.all(rows)} == {"previous"}
    assert usual.text("#table-count") == f"{counts['previous']} rows"
    usual.choose("#table-score", "")
    usual.one("#table-more").click()
    assert len(usual.all(rows)) == counts.sum()
    layer = findings["layer"].iloc[0]
    usual.one("#table-head").send_keys(f"l{layer}")
    assert len(usual.all(rows)) == (findings["layer"] == layer).sum()
    usual.one("#table-all").click()
    assert len(usual.all(rows)) == 9 * 5


def test_a_tile_turns_the_page_to_its_score(usual, findings):
    usual.one("#tiles [data-score=first]").click()
    assert usual.one("#grid-measure").get_attribute("value") == "score/first/text"
    assert usual.one("#scatter-x").get_attribute("value") == "score/first/text"
    outlined = {cell.get_attribute("data-head") for cell in usual.all("#grid [data-finding=true]")}
    first = findings[findings["score"] == "first"]
    assert outlined == {f"L{layer}.H{head}" for layer, head in zip(first["layer"], first["head"], strict=True)}
    assert usual.one("#tiles [aria-pressed=true]").get_attribute("data-score") == "first"


def test_a_link_with_a_head_opens_on_it(page, made):
    page.open(made() / "report.html", query="#L3.H4")
    assert page.text("#card h3") == "L3.H4"
    page.run("location.hash = '#L5.H6'; dispatchEvent(new HashChangeEvent('hashchange'))")
    assert page.text("#card h3") == "L5.H6"
    page.run("location.hash = '#L99.H99'; dispatchEvent(new HashChangeEvent('hashchange'))")
    assert page.text("#card h3") == "L5.H6"
    assert page.complaints() == []


def test_a_head_in_a_sentence_is_a_link(usual):
    link = usual.one("#sentences .head-link")
    usual.one("#grid [data-head='L0.H0']").click()
    link.click()
    assert usual.text("#card h3") == link.text
