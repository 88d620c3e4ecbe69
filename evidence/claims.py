"""Decide every claim of the papers from the stored results, by the rules of evidence/claims.toml.

    python evidence/claims.py [--check] [--smoke]

Writes results/claims/claims.csv with one row per claim and comparisons.csv with one row per comparison; nothing is run.
`make pages` then writes the table into docs/claims.md. With --check nothing is written: the script prints the claims
whose verdict or numbers differ from the stored ones, and exits with 1 if there are any.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown, paragraph

from drfl_papers.claims.decide import ClaimDecision, claims_csv, decide, findings_csv, load
from drfl_papers.claims.results import StoredResults
from drfl_papers.claims.verdicts import VERDICTS
from evidence import script

HERE = Path(__file__).parent
RULES = HERE / "claims.toml"
RESULTS = HERE / "results"
STORED = RESULTS / "claims"

HEAD = """
Each verdict follows from stored numbers by a rule: [claims.toml](../evidence/claims.toml) has the comparisons of
each claim, `python evidence/claims.py` decides it, and a test applies the rules to the stored results again. Every
comparison with its p-values is in [comparisons.csv](../evidence/results/claims/comparisons.csv).
"""

RULE = """
A claim is decided in each of its settings; a setting of a trend is one row of its values. The claim is significant in a
setting, as worded, if all the differences that it needs are significant at once. Its p-value in the setting is the
largest of theirs (an intersection–union test, Berger 1982), corrected over all settings of the claim (Holm).
"""

MEANINGS = (
    ("holds", 'The claim is significant in every setting, or in more than half of them if it says "most".'),
    (
        "holds partly",
        "It is significant in at least one setting, but in too few to hold, and its opposite is significant in none; "
        "or it is significant in all settings, but some of the paper's settings were not run.",
    ),
    ("not significant", "None of the other verdicts applies."),
    (
        "does not hold",
        "The opposite of one of its differences is significant in at least one setting, or in at least half of them "
        'if the claim says "most".',
    ),
    (
        "not decided",
        "A comparison has fewer than five seeds, or fewer than six if a seed never reaches the level. Failed runs do "
        "not count.",
    ),
    ("not testable here", "Nothing here measures it."),
)
"""The verdicts and their meanings."""

NUMBERS = """
Numbers are leads in the claim's direction; a negative lead contradicts the claim. A lead is the mean over the seeds
with its 95 % t-interval. Over several settings, the table shows the smallest and the largest mean, and the outermost
ends of the intervals. "Paper" is the same lead in the paper's table.
"""

TESTS = """
A lead is tested by the paired t-test and, from six seeds on, by the sign-flip test. The counts in brackets are for
single leads, whose p-values are corrected (Holm) for all differences of the table as in `paired.csv`, or for those of
the claim if the table lacks one of them. If a claim is significant in a setting as worded, so are all its leads there.
If a seed never reaches a level, its rounds count as later than any number, and only the order is tested (exact binomial
test). "Level" and "not behind" are significant if the whole interval is within the margin; their opposite is
significant if the mean is significantly beyond it. A statement about every seed is significant if all of at least five
seeds agree, and its opposite if none agrees.
"""

SECTIONS = {
    "DRDM": {
        "Tables 3, 4, Figures 5, 6": "drdm-tables-3-and-4-figures-5-and-6-a-linear-model-on-mnist",
        "Tables 5, 6": "drdm-tables-5-and-6-the-last-layer-of-a-network-trained-on-imagenet",
        "Tables 1, 2, Figures 1, 2": "drdm-tables-1-and-2-figures-1-and-2-a-cnn",
        "Figures 3, 4": "drdm-figures-3-and-4-local-steps-and-energy",
    },
    "DRFA": {"Figures 1–3": "drfa-figures-1-to-3-one-class-of-fashion-mnist-per-client"},
    "SCAFF-PD": {
        "Tables 1–4, Figures 3, 4": "scaff-pd-tables-1-to-4-figures-3-and-4-tangent-features-squared-loss",
        "Figures 2, 5": "scaff-pd-figures-2-and-5-robust-regression",
    },
}
"""The reproduced tables and figures of each paper, with their sections in EXPERIMENTS.md."""


def decided() -> list[ClaimDecision]:
    """Decide all claims."""
    stored = StoredResults(RESULTS)
    return [decide(claim, stored) for claim in load(RULES)]


def texts(found: list[ClaimDecision]) -> dict[str, str]:
    """Return the stored files by name."""
    return {"claims.csv": claims_csv(found), "comparisons.csv": findings_csv(found)}


def stored_rows() -> list[Mapping[str, str]]:
    """Read the stored claims."""
    return list(csv.DictReader(io.StringIO((STORED / "claims.csv").read_text(encoding="utf-8"))))


def rules() -> str:
    """Explain the verdicts and their numbers, for docs/claims.md."""
    meanings = markdown(["verdict", "meaning"], [[f"**{name}**", meaning] for name, meaning in MEANINGS], text=2)
    return "\n\n".join([paragraph(HEAD), paragraph(RULE), meanings, paragraph(NUMBERS), paragraph(TESTS)])


def table() -> str:
    """List the stored claims, one section per paper, for docs/claims.md."""
    papers: dict[str, list[list[str]]] = {}
    for row in stored_rows():
        remark = f". {row['remark']}" if row["remark"] else ""
        cells = [f"{row['claim']} ({row['where']})", row["verdict"], row["decides"] + remark]
        papers.setdefault(row["paper"], []).append(cells)
    head = ["claim", "verdict", "numbers"]
    return "\n\n".join(f"## {paper}\n\n{markdown(head, rows, text=3)}" for paper, rows in papers.items())


def counts() -> str:
    """Count the claims of each paper by verdict, with links to the paper's sections, for EXPERIMENTS.md."""
    stored, lines = stored_rows(), []
    columns = VERDICTS[:4]
    for paper, sections in SECTIONS.items():
        links = "; ".join(f"[{name}](#{anchor})" for name, anchor in sections.items())
        verdicts = [row["verdict"] for row in stored if row["paper"] == paper]
        numbers = [verdicts.count(name) for name in columns]
        numbers.append(len(verdicts) - sum(numbers))
        lines.append([f"[{paper}](docs/claims.md#{paper.lower()})", links, *map(str, numbers)])
    head = ["claims of", "reproduced tables and figures", *columns, "not decided or not testable"]
    return markdown(head, lines, text=2)


def differing(found: list[ClaimDecision]) -> list[str]:
    """List the ids of the claims that differ from the stored ones."""
    new = {row["id"]: row for row in csv.DictReader(io.StringIO(claims_csv(found)))}
    stored = {row["id"]: row for row in stored_rows()} if (STORED / "claims.csv").exists() else {}
    return [name for name in {**new, **stored} if new.get(name) != stored.get(name)]


BLOCKS: dict[str, Callable[[], str]] = {
    "claims.claims": table,
    "claims.rules": rules,
    "EXPERIMENTS.verdicts": counts,
}
"""Page and block → the function that writes the block."""


def main() -> int:
    parser = script.parser(__doc__, STORED)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a claim differs")
    options = parser.parse_args()
    check, found = options.check, decided()
    other = differing(found)
    if not check:
        script.store(options.out, texts(found))
    for one in found:
        if one.claim.id in other:
            print(f"{one.claim.id}: {one.verdict}: {one.decides}")
    print(f"{len(found)} claims, {len(other)} of them {'differ' if check else 'new or changed'}")
    return int(check and bool(other))


if __name__ == "__main__":
    sys.exit(main())
