"""Decide every claim of the papers from the stored results, by the rules of evidence/claims.toml.

    python evidence/claims.py [--check] [--smoke]

Writes results/claims/claims.csv, a row a claim, and comparisons.csv, a row a comparison; nothing is run. `make pages`
then writes the table into docs/claims.md. With --check nothing is written: it names the claims whose verdict or numbers
differ from the stored ones, and ends with 1 if there are any.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown, paragraph

from drfl_papers.claims.decide import Decided, claims_csv, decide, findings_csv, load
from drfl_papers.claims.results import StoredResults
from drfl_papers.claims.verdicts import VERDICTS
from evidence import script

HERE = Path(__file__).parent
RULES = HERE / "claims.toml"
RESULTS = HERE / "results"
STORED = RESULTS / "claims"

HEAD = """
Each verdict follows from stored numbers by a rule: [claims.toml](../evidence/claims.toml) says what each claim
compares, `python evidence/claims.py` decides it, and a test applies the rules again to what is stored. Every
comparison with its p-values is in [comparisons.csv](../evidence/results/claims/comparisons.csv).
"""

RULE = """
A claim is decided setting by setting; a setting of a trend is one row of its values. It is shown there as worded if
all the differences that it needs are significant at once: its p-value in the setting is the largest of theirs (an
intersection–union test, Berger 1982), corrected over all settings of the claim (Holm). It **holds** if it is shown as
worded in every setting, or in more than half of them where it says "most". It **holds partly** if it is shown as worded
in at least one setting, but in too few for that, and the opposite is shown in none; or in all, but some of the paper's
settings were not run. It **does not hold** if the opposite of one of its differences is shown in at least one setting,
or in half of them or more where it says "most". Otherwise it is **not shown**. With fewer than five seeds somewhere,
six where a seed never arrives, it is **not decided**; runs that broke off do not count. What nothing here measures is
**not testable here**.
"""

NUMBERS = """
Numbers are leads in the claim's direction, negative where it is the other way: the mean over the seeds with its 95 %
t-interval, over several settings the least and the greatest mean with the outermost ends of the intervals; "paper" is
the same from the paper's table. A lead is shown by the paired t-test and, from six seeds on, all sign flips. Alone, as
counted in brackets, it is corrected (Holm) for all differences of the table as in `paired.csv`, or for the claim's own
where the table lacks one of them; in a setting in which the claim is shown as worded, so are all its leads.
Where a seed never reaches a level its rounds are later than any number, and only who is sooner is tested (exact
binomial test). "Level" and "not behind" are shown where the whole interval is within the margin, the opposite where the
mean is shown to be beyond it. What every seed is said to do is shown where all of at least five do it, its opposite
where none does.
"""


def decided() -> list[Decided]:
    """All claims."""
    stored = StoredResults(RESULTS)
    return [decide(claim, stored) for claim in load(RULES)]


def texts(found: list[Decided]) -> dict[str, str]:
    """The stored files by name."""
    return {"claims.csv": claims_csv(found), "comparisons.csv": findings_csv(found)}


def stored_rows() -> list[Mapping[str, str]]:
    """The claims as they are stored."""
    return list(csv.DictReader(io.StringIO((STORED / "claims.csv").read_text(encoding="utf-8"))))


def rules() -> str:
    """What docs/claims.md says of the verdicts and their numbers."""
    return "\n\n".join(map(paragraph, (HEAD, RULE, NUMBERS)))


def table() -> str:
    """What docs/claims.md shows of the stored claims: a section a paper."""
    papers: dict[str, list[list[str]]] = {}
    for row in stored_rows():
        remark = f". {row['remark']}" if row["remark"] else ""
        cells = [f"{row['claim']} ({row['where']})", row["verdict"], row["decides"] + remark]
        papers.setdefault(row["paper"], []).append(cells)
    head = ["claim", "verdict", "what decides it"]
    return "\n\n".join(f"## {paper}\n\n{markdown(head, rows, text=3)}" for paper, rows in papers.items())


def counts() -> str:
    """How many claims of each paper have each verdict, for EXPERIMENTS.md."""
    rows = stored_rows()
    lines = []
    for name in dict.fromkeys([*(row["paper"] for row in rows), "all"]):
        verdicts = [row["verdict"] for row in rows if name in (row["paper"], "all")]
        lines.append([name, *(str(verdicts.count(word)) for word in VERDICTS), str(len(verdicts))])
    return markdown(["claims of", *VERDICTS, "claims"], lines)


def differing(found: list[Decided]) -> list[str]:
    """The claims that are stored otherwise, by their ids."""
    made = {row["id"]: row for row in csv.DictReader(io.StringIO(claims_csv(found)))}
    there = {row["id"]: row for row in stored_rows()} if (STORED / "claims.csv").exists() else {}
    return [name for name in {**made, **there} if made.get(name) != there.get(name)]


BLOCKS: dict[str, Callable[[], str]] = {
    "claims.claims": table,
    "claims.rules": rules,
    "EXPERIMENTS.verdicts": counts,
}
"""Page and block → what stands there."""


def main() -> int:
    parser = script.parser(__doc__, STORED)
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where a claim differs")
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
