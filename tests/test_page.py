"""The page: one file that asks nothing of the network, is whole HTML, shows text as text, and sorts in a browser."""

import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from gpt2ln.page import page
from gpt2ln.stats import LnStats
from gpt2ln.summary import by_layer

from . import norms

HOSTILE = "</pre><script>alert('&amp;')</script>\"<img src=x>"
VOID = {"meta", "br", "img", "link", "input", "hr"}
STATS = norms.stats_of(norms.inputs(0))


def mixed() -> LnStats:
    """Norms whose variances and largest channels are in no order, and in another one as text."""
    sources = {"h0/ln_1": ("ln_f", 3), "h0/ln_2": ("h0/ln_1", 0.5), "ln_f": ("h0/ln_2", 12)}
    return norms.stats_of([{n: text[m] * np.float32(k) for n, (m, k) in sources.items()} for text in norms.inputs(0)])


class Reader(HTMLParser):
    """Tags in their order, the cells of the table, and all text by its tag; an end tag must close what is open."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.tags, self.rows, self.texts, self.keys = [], [], [], {}, []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.open += [] if tag in VOID else [tag]
        if tag == "tr":
            self.rows.append([])
            self.keys.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.keys[-1].append(dict(attributes).get("data-key"))

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        if self.open:
            self.texts[self.open[-1]] = self.texts.get(self.open[-1], "") + text
        if {"td", "th"} & {*self.open}:
            self.rows[-1][-1] += text


def made(stats: LnStats = STATS, k: int = 3, **provenance) -> str:
    return page(norms.run_of(stats, **provenance), k)


@pytest.fixture(scope="module")
def plain() -> str:
    return made()


def test_the_page_is_whole_html(plain):
    text = plain
    assert text.startswith("<!doctype html>\n<html lang=")
    assert text.endswith("</html>\n")
    tags = [tag for tag, _ in Reader(text).tags]
    for tag in ("html", "head", "title", "body", "h1", "table", "svg", "script"):
        assert tags.count(tag) == 1, tag
    text.encode("utf-8")


def test_the_page_asks_for_nothing(plain):
    """Addresses in it are names of XML and licence vocabularies inside the figure, which no browser fetches."""
    text = plain
    addresses = set(re.findall(r"https?:[^\s\"'<>)]*", text))
    names = ("http://www.w3.org/", "http://purl.org/dc/", "http://creativecommons.org/ns#", "https://matplotlib.org/")
    assert all(address.startswith(names) for address in addresses), addresses
    for tag, attributes in Reader(text).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "image"), tag
        for key in attributes.keys() & {"src", "srcset", "href", "xlink:href", "action", "data"}:
            assert attributes[key].startswith("#"), (tag, key, attributes[key])
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttp|import\(|localStorage|cookie", text)


def test_ids_in_the_figure_are_found(plain):
    """What the figure refers to is on the page."""
    tags = Reader(plain).tags
    ids = {attributes["id"] for _, attributes in tags if "id" in attributes}
    wanted = {a["xlink:href"] for _, a in tags if "xlink:href" in a}
    assert {name.removeprefix("#") for name in wanted} <= ids


@pytest.mark.parametrize("k", [0, 1, 3, 100])
def test_the_table_has_a_row_a_norm_that_says_what_the_summary_says(k):
    head, *rows = Reader(made(k=k)).rows
    assert head[:6] == ["norm", "tokens", "mean", "variance", "median", "largest"]
    found = by_layer(STATS, norms.gains_of(STATS), max(k, 1))
    for row, right in zip(rows, found, strict=True):
        assert len(row) == len(head)
        assert row[:2] == [right["norm"], str(right["count"])]
        var = right["var"]
        shown = [right["mean"]["mean"], var["mean"], var["median"], var["max"], right["position_0"]["var"]]
        assert row[2:7] == [f"{x:.4g}" for x in shown]
        assert row[7:9] == [f"{right['rstd']['median']:.4g}", f"{right['rms']['mean']:.4g}"]
        assert row[9:12] == [f"{right['growth']:.3g}x", str(right["small"]), f"{right['g']['mean']:.4g}"]
        assert row[12] == ", ".join(f"{c['channel']}: {100 * c['share']:.1f} %" for c in right["channels"])


def test_keys_hold_every_digit(plain):
    _, *keys = Reader(plain).keys
    found = by_layer(STATS, norms.gains_of(STATS), 3)
    assert [float(row[3]) for row in keys] == [row["var"]["mean"] for row in found]
    assert [int(row[0]) for row in keys] == [0, 1, 2]


def test_a_channel_that_is_massive_at_half_of_the_tokens_is_bold():
    x = np.random.default_rng(0).normal(0, 0.1, (4, 40)).astype(np.float32)
    x[:2, 7] += 9
    text = made(norms.stats_of([{"ln_f": x}]), k=2)
    assert Reader(text).texts["b"].startswith("7: ")
    assert text.count("<b>") == 1


def test_what_was_read_is_said(plain):
    assert "<p>23 tokens of 4 texts; n_vocab 260, n_ctx 16, n_embd 6, " in plain
    assert "Position 0 is shown apart: its variance is " in plain
    alone = made(norms.stats_of(norms.inputs(0, [1])))
    assert "<p>1 token of 1 text; " in alone
    assert "Position 0 is the only one." in alone


def test_text_is_shown_as_text():
    """A command line, names of norms, hyperparameters: whatever a file to merge says."""
    model = {"index_sha256": "<b>" * 9, "hparams": {"<i>": HOSTILE}}
    strange = norms.stats_of([{HOSTILE: text["ln_f"]} for text in norms.inputs(0)])
    read = Reader(made(strange, command=["gpt2ln", HOSTILE], model=model))
    assert [tag for tag, _ in read.tags].count("script") == 1
    assert not {"img", "i"} & {tag for tag, _ in read.tags}
    assert read.rows[1][0] == HOSTILE
    assert "<script>alert" in read.texts["pre"]
    assert "<b><b>" in read.texts["p"]
    assert read.texts["p"].count(HOSTILE) == 2


def test_a_norm_of_nothing_has_no_growth():
    stats = norms.stats_of([dict.fromkeys(norms.NORMS, np.zeros((2, 6), np.float32))])
    assert [row[9] for row in Reader(made(stats)).rows[1:]] == ["-"] * 3


# In a browser


@pytest.fixture(scope="module")
def unsorted() -> str:
    return made(mixed())


@pytest.fixture
def browse(tmp_path, unsorted):
    """`browse("#-var")` -> the page as the browser has it after its script."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not on PATH")
    quiet = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    flags = [f"--{flag}" for flag in f"{quiet} disable-component-update disable-sync window-size=480,900".split()]

    def call(fragment: str, script: str = "") -> Reader:
        text = unsorted.replace("</body>", f"<script>{script}</script></body>")
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        address = (tmp_path / "page.html").as_uri() + fragment
        command = [chromium, *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", address]
        return Reader(subprocess.run(command, capture_output=True, timeout=90, check=True).stdout.decode())

    return call


def column(read: Reader, n: int) -> list[str]:
    return [row[n] for row in read.keys[1:]]


@pytest.mark.slow
def test_the_address_says_how_to_sort(browse):
    before = browse("")
    assert column(before, 0) == ["0", "1", "2"]
    keys = column(before, 3)
    assert sorted(keys) not in (keys, sorted(keys, key=float))
    for fragment, down in (("#-var", True), ("#var", False)):
        var = [float(key) for key in column(browse(fragment), 3)]
        assert var == sorted(var, reverse=down)
        assert sorted(var) == sorted(map(float, keys))
    channels = column(browse("#channels"), 12)
    assert channels == sorted(channels) != column(before, 12)
    assert column(browse("#-norm"), 0) == ["2", "1", "0"]
    assert column(browse("#-count"), 0) == ["0", "1", "2"]  # all equal


CLICKS = """
const button = heads[3].querySelector("button"), said = [];
for (const _ of [1, 2, 3]) {
  button.click();
  said.push(location.hash, heads[3].getAttribute("aria-sort"), [...body.rows].map(row => row.cells[0].dataset.key));
}
const wide = document.documentElement.scrollWidth <= innerWidth;
document.title = JSON.stringify([said, heads.filter(head => head.ariaSort).length, wide]);
"""


@pytest.mark.slow
def test_a_click_sorts_falling_then_rising_and_a_narrow_page_does_not_scroll_sideways(browse):
    rows = by_layer(mixed(), norms.gains_of(STATS), 1)
    rising = [str(n) for n in np.argsort([row["var"]["mean"] for row in rows])]
    falling = rising[::-1]
    steps = ["#-var", "descending", falling, "#var", "ascending", rising, "#-var", "descending", falling]
    title = browse("", CLICKS).texts["title"]
    assert title == str([steps, 1, True]).replace("'", '"').replace(" ", "").replace("True", "true")
