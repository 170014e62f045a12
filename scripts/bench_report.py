"""What was measured, as rows; ratios round by round, the targets that they are held to; table, markdown and picture.

A row has one value a system and round, in its own unit.  A ratio is the median of the ratios of single rounds, in which
the machine was equally slow for both.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from bench_formats import FAST
from bench_systems import EXACT

EARLY, BATCH = "decode, context 32-160", "batch of 8, 32 + 64 tokens each"
REPEATED, LOOKUP = "decode, a repeated prompt", "the same, --speculate lookup"
FIRST, FORTY = "cold process, 1 token", "cold process, 40 tokens"
PEAK, COLD_PEAK, LOADED = "peak memory, all of the rows above", "peak memory, 40 tokens", "import and load"
WEIGHTS, FILE = "weights", "checkpoint"
UNITS = {"tokens/s": (1, 1), "s": (2, 1), "bytes": (2, 1e9), "x": (2, 1)}  # digits, divided by


def late(n_ctx: int) -> str:
    return f"decode, context {n_ctx - 124}-{n_ctx - 4}"


def prefill(n_ctx: int) -> str:
    return f"prefill, {n_ctx - 1:,} tokens"


def ln_stats(n_ctx: int) -> str:
    return f"ln-stats, {n_ctx - 1:,} tokens"


@dataclass(frozen=True)
class Target:
    """The ratio of a row of ours to another, or to none: a plain value; `most`: not above the bound, else not below."""

    row: str
    system: str
    bound: float
    against: tuple[str, str] | None
    most: bool = False

    @property
    def words(self) -> str:
        """`at least 1x CTranslate2`"""
        size = "at most" if self.most else "at least"
        if self.against is None:
            return f"{size} {said('bytes', self.bound)}"
        row, system = self.against
        return f"{size} {self.bound:g}x {system if row == self.row else row}"

    def reached(self, rows: dict) -> float | None:
        """None where either was not measured."""
        ours = values(rows, self.row, self.system)
        if self.against is None:
            return statistics.median(ours) if ours else None
        theirs = values(rows, *self.against)
        return statistics.median(a / b for a, b in zip(ours, theirs, strict=True)) if ours and theirs else None

    def held(self, rows: dict) -> bool | None:
        reached = self.reached(rows)
        if reached is None:
            return None
        return reached <= self.bound if self.most else reached >= self.bound


def values(rows: dict, row: str, system: str) -> list[float]:
    return rows.get(row, {"values": {}})["values"].get(system, [])


def targets(n_ctx: int) -> list[Target]:
    def beside(row: str, peer: str, bound: float, system: str = FAST, **more) -> Target:
        return Target(row, system, bound, (row, peer), **more)

    return [
        beside(EARLY, "CTranslate2", 1.0),
        beside(EARLY, "llama.cpp", 0.95),
        beside(late(n_ctx), "CTranslate2", 1.0),
        beside(prefill(n_ctx), "transformers", 1.0),
        beside(BATCH, "CTranslate2", 1.0),
        beside(FORTY, "transformers", 0.35, most=True),
        beside(FORTY, "transformers", 0.9, EXACT, most=True),
        Target(LOOKUP, FAST, 1.8, (REPEATED, FAST)),
        Target(late(n_ctx), FAST, 0.8, (EARLY, FAST)),
        Target(PEAK, FAST, 1.3, (WEIGHTS, FILE), most=True),
        Target("1558M: prepare, peak memory", FAST, 16e9, None, most=True),
        Target("1558M: 20 tokens, peak memory", FAST, 16e9, None, most=True),
        Target("1558M: load, from the disk", FAST, 2.0, ("1558M: read the files once, from the disk", "reading"), True),
        Target("1558M: load, from memory", FAST, 2.0, ("1558M: read the files once, from memory", "reading"), True),
    ]


def judged(found: dict) -> list[dict]:
    """Targets that name a row that was measured, with what was reached."""
    rows = found["rows"]
    return [
        {
            "row": target.row,
            "system": target.system,
            "target": target.words,
            "reached": target.reached(rows),
            "held": target.held(rows),
        }
        for target in targets(found["shape"]["n_ctx"])
        if target.row in rows
    ]


def said(unit: str, value: float) -> str:
    digits, divisor = UNITS[unit]
    value /= divisor
    name = {"bytes": " GB", "x": "x"}.get(unit, f" {unit}")
    return f"{value:.{0 if value >= 100 else digits}f}{name}"


def table(found: dict) -> Iterator[tuple[str, ...]]:
    """Rows by systems: medians."""
    yield ("", *found["systems"])
    for row, measured in found["rows"].items():
        if set(measured["values"]) & set(found["systems"]):
            cells = [measured["values"].get(system, []) for system in found["systems"]]
            yield (row, *(said(measured["unit"], statistics.median(cell)) if cell else "-" for cell in cells))


def verdicts(found: dict) -> Iterator[tuple[str, ...]]:
    yield ("", "system", "target", "reached", "")
    for it in found["targets"]:
        if it["reached"] is None:
            yield (it["row"], it["system"], it["target"], "-", "not measured")
            continue
        unit = "x" if "x " in it["target"] else "bytes"
        yield (it["row"], it["system"], it["target"], said(unit, it["reached"]), "held" if it["held"] else "MISSED")


def remarks(found: dict) -> Iterator[str]:
    """What a reader must know beside the figures."""
    for peer, packages in found["left_out"].items():
        yield f"{peer} was not measured: not installed ({', '.join(packages)})"
    for row, systems in found["greedy"].items():
        apart = [f"{name}'s for the first {same} of {of}" for name, (same, of) in systems.items() if same < of]
        if systems:
            yield f"greedy ids, {row}: " + ("equal" if not apart else "equal but " + ", ".join(apart))
    if counts := found.get("speculation"):
        part = f"{counts['accepted']} of {counts['guesses']} guesses accepted"
        yield f"speculation: {part}, {counts['passes']} passes over the weights"
    if distance := found.get("distance"):
        yield "fast from exact: " + ", ".join(f"{name} {value}" for name, value in distance.items())
    if (busy := max(found["load_average"])) > found["machine"]["cores"] + 0.5:
        yield f"load average up to {busy:.1f}: other processes ran at the same time"


def markdown(found: dict) -> str:
    """For the README: both tables, the second without those that were not measured."""
    measured = list(table(found))
    judged = [row for row in verdicts(found) if row[-1] != "not measured"]
    measured[0], judged[0] = (found["date"][:10], *measured[0][1:]), ("target", *judged[0][1:])
    blocks = ["\n".join("| " + " | ".join(row) + " |" for row in _ruled(rows)) for rows in (measured, judged)]
    return "\n\n".join(blocks) + "\n"


def _ruled(rows: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return [rows[0], ("---",) * len(rows[0]), *rows[1:]]


COLOURS = {
    EXACT: "#1f5fa8",
    FAST: "#d1495b",
    "transformers": "#9aa5b1",
    "CTranslate2": "#6b7785",
    "llama.cpp": "#3d4752",
}


def picture(found: dict):
    """A panel a row that more than one system has, a bar a system, its median beside it -> matplotlib's figure"""
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    shown = {row: it for row, it in found["rows"].items() if len(set(it["values"]) & set(found["systems"])) > 1}
    across = 3
    down = -(-len(shown) // across)
    figure = Figure(figsize=(4.2 * across, 0.9 + (0.7 + 0.28 * len(found["systems"])) * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for panel, (row, measured) in zip(panels, shown.items(), strict=False):
        _panel(panel, row, measured, found["systems"])
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    machine = found["machine"]
    figure.suptitle(
        f"{found['date'][:10]}, {machine['processor']}, {machine['threads']} threads, float32,"
        f" {found['shape']['n_layer']} layers of width {found['shape']['n_embd']}; rounds: {found['rounds']}, medians",
        fontsize=10,
    )
    return figure


def _panel(panel, row: str, measured: dict, systems: list[str]) -> None:
    there = [system for system in systems if measured["values"].get(system)]
    medians = [statistics.median(measured["values"][system]) for system in there]
    bars = panel.barh(range(len(there)), medians, color=[COLOURS.get(system, "#9aa5b1") for system in there])
    panel.bar_label(bars, [said(measured["unit"], value) for value in medians], padding=3, fontsize=8)
    better = "more is better" if measured["unit"] == "tokens/s" else "less is better"
    panel.set_title(f"{row}\n{better}", fontsize=9)
    panel.set_yticks(range(len(there)), there, fontsize=8)
    panel.invert_yaxis()
    panel.set_xlim(0, max(medians) * 1.35)
    panel.set_xticks([])
    panel.spines[["top", "right", "bottom"]].set_visible(False)
