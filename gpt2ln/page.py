"""A run as one HTML page that needs nothing else: the figure, the table, which sorts, and what it was made from."""

import html
import json
import re
from collections.abc import Mapping

from .figure import amount, drawn
from .runs import Run
from .summary import by_layer

_COLUMNS = {
    "norm": ("norm", "the LayerNorm, in the order of the forward pass"),
    "count": ("tokens", "tokens it saw"),
    "mean": ("mean", "mean of its input over channels; mean over tokens"),
    "var": ("variance", "variance of its input over channels; mean over tokens"),
    "median": ("median", "median of the variance over tokens, within 1.6 %"),
    "max": ("largest", "largest variance of a token"),
    "at0": ("at position 0", "median of the variance at position 0"),
    "rstd": ("rstd", "median of rsqrt(variance + 1e-5)"),
    "rms": ("RMS out", "root mean square of its output; mean over tokens"),
    "growth": ("growth", "root mean square of its input, times that of the first norm"),
    "small": ("small", "tokens whose variance is below 100 epsilon, where epsilon matters"),
    "g": ("g", "mean of its gain in the checkpoint"),
    "channels": ("top channels", "channel: share of the variance; bold where massive at half of the tokens"),
}

_STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1320px; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; } p { margin: .3rem 0 1rem; }
figure { margin: 1rem 0; overflow-x: auto; padding: .5rem;
  background: #fff; border: 1px solid var(--line); border-radius: 6px; }
figure svg { width: 100%; min-width: 640px; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; white-space: nowrap; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { position: sticky; left: 0; background: Canvas; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; }
th button { all: unset; cursor: pointer; font-weight: 600; }
th button:focus-visible { outline: 2px solid; } th[aria-sort] button::after { content: " \\25B2"; font-size: .7em; }
th[aria-sort=descending] button::after { content: " \\25BC"; }
tbody tr:hover { background: #8882; } details { margin: 1.5rem 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""

_SCRIPT = """
const table = document.querySelector("table"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
function sortBy(n, down) {
  const key = row => row.cells[n].dataset.key, number = row => Number(key(row));
  const text = heads[n].dataset.kind === "text";
  const order = (a, b) => text ? key(a).localeCompare(key(b)) : number(a) - number(b);
  body.append(...[...body.rows].sort((a, b) => down ? order(b, a) : order(a, b)));
  heads.forEach((head, i) => i === n ? head.setAttribute("aria-sort", down ? "descending" : "ascending")
                                     : head.removeAttribute("aria-sort"));
}
heads.forEach((head, n) => head.querySelector("button").addEventListener("click", () => {
  const down = head.getAttribute("aria-sort") !== "descending";
  history.replaceState(null, "", "#" + (down ? "-" : "") + head.dataset.name);
  sortBy(n, down);
}));
const wish = location.hash.slice(1), n = heads.findIndex(head => head.dataset.name === wish.replace(/^-/, ""));
if (n >= 0) sortBy(n, wish.startsWith("-"));
"""


def page(run: Run, k: int) -> str:
    """The page as UTF-8 text; `#-var` behind its address sorts by a column, falling."""
    figure = drawn(run.stats, run.gains, "svg").decode()
    figure = figure[figure.index("<svg") :]
    model = run.provenance["model"]
    hparams = ", ".join(f"{name} {value}" for name, value in model["hparams"].items())
    rows = by_layer(run.stats, run.gains, max(k, 1))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>LayerNorm statistics</title><style>{_STYLE}</style></head><body>
<h1>LayerNorm statistics</h1>
<p>{amount(run.stats)}; {html.escape(hparams)}; checkpoint index {html.escape(model["index_sha256"][:12])}.
{html.escape(_apart(rows))}</p>
<figure>{figure}</figure>
<div class="scroll"><table><thead><tr>{"".join(_head(name) for name in _COLUMNS)}</tr></thead><tbody>
{"".join(_row(n, row) for n, row in enumerate(rows))}</tbody></table></div>
<details><summary>Made from</summary><pre>{html.escape(json.dumps(dict(run.provenance), indent=1))}</pre></details>
<script>{_SCRIPT}</script></body></html>
"""


def _apart(rows: list[dict]) -> str:
    ratios = [(row["position_0"]["ratio"], row["norm"]) for row in rows if row["position_0"]["ratio"]]
    if not ratios:
        return "Position 0 is the only one."
    ratio, norm = max(ratios, key=lambda pair: max(pair[0], 1 / pair[0]))
    return f"Position 0 is shown apart: its variance is {ratio:.3g} times the median of the others at {norm}."


def _head(name: str) -> str:
    title, what = _COLUMNS[name]
    kind = "text" if name == "channels" else "number"
    said = f'data-name="{name}" data-kind="{kind}" title="{html.escape(what)}"'
    return f'<th scope="col" {said}><button>{title}</button></th>'


def _row(n: int, row: Mapping) -> str:
    channels = ", ".join(_channel(c) for c in row["channels"])
    shown = {name: (row[name]["mean"], f"{row[name]['mean']:.4g}") for name in ("mean", "var", "rms", "g")}
    shown |= {"norm": (n, html.escape(row["norm"])), "count": (row["count"], f"{row['count']:,}")}
    shown |= {name: (row["var"][name], f"{row['var'][name]:.4g}") for name in ("median", "max")}
    shown |= {"at0": (row["position_0"]["var"], f"{row['position_0']['var']:.4g}")}
    shown |= {"rstd": (row["rstd"]["median"], f"{row['rstd']['median']:.4g}")}
    growth = row["growth"]
    shown |= {
        "growth": (growth or 0, "-" if growth is None else f"{growth:.3g}x"),
        "small": (row["small"], row["small"]),
    }
    shown |= {"channels": (re.sub("<[^>]*>", "", channels), channels)}
    cells = (f'<td data-key="{html.escape(str(key))}">{text}</td>' for key, text in map(shown.get, _COLUMNS))
    return f"<tr>{''.join(cells)}</tr>\n"


def _channel(c: Mapping) -> str:
    text = f"{c['channel']}: {100 * c['share']:.1f} %"
    return f"<b>{text}</b>" if c["often"] >= 0.5 else text
