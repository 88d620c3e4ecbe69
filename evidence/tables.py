"""Make the tables of docs/results/resilience.md and docs/{certificate,theory,ambiguity}.md from stored results.

`make pages` writes them into the pages.
"""

from __future__ import annotations

import csv
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown, paragraph

RESULTS = Path(__file__).parent / "results"
HOSTILE_SITES = RESULTS / "hostile_sites"
SEEDS = 3
Row = Mapping[str, str]

CALLED = {"ScaffPD": "SCAFF-PD", "DualDRDM": "dual DRDM"}
"""Algorithms whose name in docs/results/resilience.md differs."""


def rows_of(path: str) -> list[Row]:
    """The rows of a stored CSV file."""
    with (RESULTS / path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cells_of(path: str) -> list[list[str]]:
    """The cells of a stored Markdown table, row by row."""
    lines = (RESULTS / path).read_text(encoding="utf-8").splitlines()[2:]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]


def mean(rows: Sequence[Row], column: str, **of: str) -> float:
    """A column's mean over the seeds, in the rows with these values."""
    seeds = [float(row[column]) for row in rows if of.items() <= row.items()]
    if len(seeds) != SEEDS:
        raise ValueError(f"{len(seeds)} rows instead of {SEEDS} with {of}")
    return statistics.fmean(seeds)


def dropouts() -> str:
    """Table of the average and the worst client by dropout probability."""
    stored, lines = rows_of("dropout/cells.csv"), []
    drops = {f"{float(row['drop']):g}": row["drop"] for row in stored}
    for name in ("FedAvg", "SCAFFOLD", "AFL", "DRFA", "ScaffPD", "DRDM", "DualDRDM"):
        both = [
            [mean(stored, column, algorithm=name, drop=drop) for column in ("avg_percent", "worst_percent")]
            for drop in drops.values()
        ]
        lines.append([CALLED.get(name, name), *(f"{average:.1f} / {worst:.1f}" for average, worst in both)])
    corner = "average / worst client %, by the probability that a client drops out of a round"
    return markdown([corner, *drops], lines)


DEFENCES = {
    "none": "nothing or the default",
    "RobustClip(3, 0.1)": "`robust:k=3,floor=0.1`",
    "Audit(16 rows)": "`probe`",
    "CVaR(0.3)": "CVaR(0.3)",
}
"""Stored name → name in docs/results/resilience.md."""


def liars() -> str:
    """Table of the worst honest client and the λ of malicious clients, which report 100 times their loss."""
    stored, lines = rows_of("abuse/cells.csv"), []
    for name in ("DRFA", "DRDM", "DualDRDM", "ScaffPD"):
        for defence, called in DEFENCES.items():
            if "Robust" in defence and name != "DualDRDM":
                continue  # the page shows the tight clip for one algorithm only, to keep the table short
            own = {"algorithm": name, "defence": defence}
            cells = [f"{mean(stored, 'worst', attack='none', liars='0', **own):.1f}"]
            for count in ("1", "3", "6"):
                lied = {"attack": "100 times", "liars": count, **own}
                cells.append(f"{mean(stored, 'worst', **lied):.1f} ({mean(stored, 'mass', **lied):.0f})")
            lines.append([f"{CALLED.get(name, name)}, {called}", *cells])
    return markdown(["", "no malicious client", "1", "3", "6"], lines)


def behaviours(folder: Path = HOSTILE_SITES) -> dict[str, list[dict]]:
    """How each behaviour of hostile sites ended, by algorithm."""
    found = sorted(folder.glob("*.json"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8"))["behaviours"] for path in found}


def hostile_sites(folder: Path = HOSTILE_SITES) -> str:
    """Table of the outcomes of hostile behaviours, by algorithm and by the corrupted message."""
    lines = []
    for algorithm, rows in behaviours(folder).items():
        for of, what in (("identity", "reported properties"), ("reply", "replies")):
            mine = [row for row in rows if row["of"] == of]
            right = [row for row in mine if row["right"]]
            results = sum(str(row["outcome"]).startswith("results") for row in right)
            counts = (len(mine), results, len(right) - results, len(mine) - len(right))
            lines.append([f"{algorithm}, {what}", *map(str, counts)])
    heads = ("behaviours", "ended with results", "ended with a one-line error", "another end, or an honest site harmed")
    return markdown(["", *heads], lines)


def gaps(path: str) -> dict[str, str]:
    """The gap of each algorithm in a stored table."""
    return {cells[0]: cells[-1] for cells in cells_of(path)}


def certificate_gaps() -> str:
    """Table of both bounds at seed 0, and of the gap's mean and spread."""
    first = {row["algorithm"]: row for row in rows_of("digits_certificate/compare.csv") if row["seed"] == "0"}
    lines = []
    for name, gap in gaps("digits_certificate/table.md").items():
        digits = 4 if float(first[name]["gap"]) > 1e-3 else 6  # more digits if both bounds are almost equal
        lines.append([name, *(f"{float(first[name][side]):.{digits}f}" for side in ("primal", "lower")), gap])
    return markdown(["algorithm", "primal, seed 0", "lower, seed 0", "gap, three seeds"], lines)


def certificate_one_step() -> str:
    """Report DRFA's gap with a single local step, which cannot drift."""
    gap = gaps("digits_certificate_steps/one_step.md")["DRFA"]
    return paragraph(
        f"""
        - **DRFA** stops at a gap of about 0.1, because its local steps drift. With one local step per round instead of
        five, the gap is {gap} ([one_step.md](../evidence/results/digits_certificate_steps/one_step.md)), so drift was
        the only obstacle. That run has 2000 rounds and γ = 0.05, which keeps the number of steps and τγ the same.
        """,
        indent="  ",
    )


def certificate_steps() -> str:
    """Table of the gap with other dual step sizes."""
    files = ("digits_certificate_steps/small.md", "digits_certificate/table.md", "digits_certificate_steps/large.md")
    small, *others = map(gaps, files)
    heads = ["algorithm", "gap, a fifth of the step", "gap, the step above", "gap, four times the step"]
    return markdown(heads, [[name, gap, *(other[name] for other in others)] for name, gap in small.items()])


def certificate_bounds() -> str:
    """Table of both lower bounds over the rounds, and of the cost of one."""
    heads = {
        "round": "round",
        "gap_pooled": "gap, pooled",
        "exchanges_pooled": "exchanges of gradients",
        "gap_one_gradient": "gap, one gradient",
    }
    rows = rows_of("digits_certificate/bounds.csv")
    return markdown([*heads.values()], [[row[name] for name in heads] for row in rows], text=0)


def theory_steps() -> str:
    """Table of the gap with prescribed and with other step sizes."""
    heads = ["algorithm", "step sizes", "rounds", "gap, last", "gap, averaged"]
    return markdown(heads, cells_of("theory_steps/table.md"), text=2)


def theory_rates() -> str:
    """Tables of measured rates and their bounds, one per theorem."""
    return (RESULTS / "theory_rates" / "table.md").read_text(encoding="utf-8").rstrip()


def drdm_recursions() -> str:
    """Table of the limits of DRDM's algorithm and of the sequences in its proof."""
    heads = ["recursion", "m, τ", "off the average optimum, from 0", "from 1", "ends apart", "‖c − mean h_i‖"]
    heads += ["h_i off ∇f_i(w)"]
    cells = [[name, f"{m}, {tau}", *rest] for name, m, tau, *rest in cells_of("drdm_recursions/table.md")]
    return markdown(heads, cells, text=2)


def ambiguity_evidence() -> str:
    """Describe the accuracy of the ambiguity sets' answers."""
    found = json.loads((RESULTS / "ambiguity" / "summary.json").read_text(encoding="utf-8"))
    lengths = [int(length) for length in found["draws_by_length"]]
    apart: dict[bool, float] = {}
    for record in found["sets"]:
        if record["solver"]:
            curved = record["set"].startswith(("KL", "ChiSquareBall"))
            lam = max(value for name, value in record["solver"].items() if name != "objective")
            apart[curved] = max(lam, apart.get(curved, 0.0))
    residuals = f"""
        `{found["command"]}` tries {len(found["sets"])} sets and parameters on
        {sum(found["draws_by_length"].values()):,} random vectors each, of {min(lengths)} to {max(lengths)} entries:
        spread over six orders of magnitude, tied, sparse, far from the origin, huge and tiny up to ±1e300. It measures
        how much the answers violate the Karush-Kuhn-Tucker conditions, which `tests/ambiguity/kkt.py` derives from the
        definitions of the sets only. The largest residual is {found["largest_residual"]:.0e}. Residuals are absolute
        for vectors up to 1e6. For larger vectors they are relative to size/1e6, because rounding of the input alone
        causes an error of this size.
    """
    solver = f"""
        The script also compares the answers with CVXPY and Clarabel, at tolerances of 1e-12, on
        {found["solver_draws"]} further vectors per set. Objectives agree within
        {found["largest_objective_difference"]:.0e}. λ agrees within {apart[False]:.0e} for polyhedra and the χ²
        penalty. For KL and balls it agrees within {apart[True]:.0e}, because an interior-point method determines λ only
        to the square root of the accuracy of its objective there. The comparison omits two priors that fall to 1e-9,
        because Clarabel does not solve them accurately enough. The results are in the
        [table](../evidence/results/ambiguity/table.md) and, with versions and seed, in
        `evidence/results/ambiguity/summary.json`.
    """
    return f"{paragraph(residuals)}\n\n{paragraph(solver)}"


BLOCKS: dict[str, Callable[[], str]] = {
    "resilience.dropouts": dropouts,
    "resilience.hostile-sites": hostile_sites,
    "resilience.liars": liars,
    "certificate.bounds": certificate_bounds,
    "certificate.gaps": certificate_gaps,
    "certificate.one-step": certificate_one_step,
    "certificate.steps": certificate_steps,
    "theory.steps": theory_steps,
    "theory.rates": theory_rates,
    "theory.drdm-recursions": drdm_recursions,
    "ambiguity.evidence": ambiguity_evidence,
}
"""Page and block → function that writes it."""
