"""Write the generated blocks of the pages, from stored results and from the code.

    python scripts/pages.py [--check]

A block is between two comments on separate lines, `<!-- PAGE.BLOCK: written by make pages -->` and `<!-- end -->`.
``BLOCKS`` names the function that writes it, and ``FILES`` the pictures that are drawn from the code. With --check, the
script writes nothing, names the blocks and files that differ, and exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import tables as benchmarks
from benchmarks.tables import markdown, paragraph
from scripts import architecture, decision_guide, error_codes, trial_tables, versions
from tests.conformance.wrong.traps import ALGORITHM_TRAPS, AMBIGUITY_TRAPS, FEDERATION_TRAPS

from drfl.core.atomic_files import atomic_write
from drfl.experiments.run.measures import signed_text
from drfl.experiments.tuning.spaces import DIGITS, LR, SPACES
from drfl.experiments.tuning.suggestion import STARTUP
from drfl.testing import ALGORITHM_CHECKS, AMBIGUITY_CHECKS, FEDERATION_CHECKS
from evidence import (
    claims,
    cluster_coverage,
    false_headlines,
    false_model_tables,
    features,
    leads,
    stopping_rows,
    tables,
)
from evidence import promise_tables as promise

ROOT = Path(__file__).parents[1]
FOLDERS = ("", "contributing", "reference", "results", "start")
PAGES = {path.stem: path for folder in FOLDERS for path in sorted((ROOT / "docs" / folder).glob("*.md"))}
PAGES["EXPERIMENTS"] = ROOT / "EXPERIMENTS.md"
for name in ("defaults", "features", "fit", "scale", "speed"):
    PAGES[name] = ROOT / "docs" / "results" / f"{name}.md"  # the guides of these names have no blocks
PAGES["hospitals"] = ROOT / "examples" / "hospitals" / "README.md"

START, END = "<!-- {}: written by make pages -->\n", "<!-- end -->\n"
STARTS = re.compile("^" + START.format(r"(\S+)"), re.MULTILINE)
ENDS = re.compile(f"^{END}", re.MULTILINE)


def listed(checks: Sequence[Callable], what: str) -> str:
    """Format a table of checks, each with the first line of its docstring."""
    rows = []
    for check in checks:
        line = (check.__doc__ or "").strip().splitlines()[0]
        line = re.sub(r":class:`(?:\w+\.)*(\w+)`", r"`\1`", line).replace("``", "`")
        rows.append([f"`{check.__name__}`", line])
    return markdown(["check", what], rows, text=2)


def algorithm_checks() -> str:
    """Write the section on the checks of an algorithm."""
    return f"### The {len(ALGORITHM_CHECKS)} checks of an algorithm\n\n{listed(ALGORITHM_CHECKS, 'what it checks')}"


def federation_checks() -> str:
    """Write the section on the checks of a federation."""
    return f"### The {len(FEDERATION_CHECKS)} checks of a federation\n\n{listed(FEDERATION_CHECKS, 'what it checks')}"


IN_PACKAGES = {
    "SCAFFOLD": ("SignFlipped", "OneOverEpochs", "ShareForgotten", "DividesByAsked", "DecayedRate"),
    "FedDyn": ("PullLost", "DecayForgotten", "HistoryOfTheCohort", "HistorySign"),
    "QFedAvg": ("LossAfterTraining", "LossDuringTraining", "NormOfTheScaled"),
    "DRFA": (
        "UniformCohort", "LeavesOutTau", "SnapshotPerClient", "DecayOnSelf", "DecayInState", "FloorOfTheFirst",
        "FloorByRenormalising", "TypeTested",
    ),
    "Federation": ("AcceptsAnything", "MomentumKept", "Sharing", "ByVisit"),
}  # fmt: skip
"""The wrong variants whose mistake was found in a real package; docs/testing.md shows these."""


def traps() -> str:
    """Format a table of mistakes of real packages, with the checks that must reject them."""
    known = {(trap.part, trap.variant): trap for trap in (*ALGORITHM_TRAPS, *FEDERATION_TRAPS)}
    shown = [known[part, variant] for part, variants in IN_PACKAGES.items() for variant in variants]
    rows = [
        [f"{trap.part}: {trap.mistake}", f"`{trap.variant}`", ", ".join(f"`{name}`" for name in trap.caught_by)]
        for trap in shown
    ]
    return markdown(["trap", "wrong variant", "rejected by"], rows, text=3)


def ambiguity_traps() -> str:
    """Write the number of wrong sets."""
    return paragraph(f"""
        Each check rejects at least one deliberately wrong set: `tests/conformance/wrong/ambiguity.py` has
        {len(AMBIGUITY_TRAPS)} of them, and `python evidence/mutations.py` runs all checks on each
        ([table](../evidence/results/mutations/table.md)).
    """)


def tuning_trials() -> str:
    """Describe the choice of the trials' parameters."""
    return paragraph(f"""
        The first {STARTUP} points of an algorithm are random, later ones come from Optuna's tree-structured Parzen
        estimator. Values are rounded to {DIGITS} digits before they run, so the file has exactly the values that ran.
    """)


def tuning_spaces() -> str:
    """Format a table of the search spaces; the sentence below describes η, which most algorithms share."""
    rows = [[name, "; ".join("lr" if d == LR else f"{d.name} {d}" for d in space)] for name, space in SPACES.items()]
    said = f"An lr without a range is η, from {LR.low:g} to {LR.high:g} times 1/L̂ on a log scale."
    return f"{markdown(['algorithm', 'parameters'], rows, text=2)}\n\n{said}"


def bench_ranking() -> str:
    """Format the ranking of the stored benchmark."""
    content = json.loads((ROOT / "evidence" / "results" / "bench" / "bench.json").read_text(encoding="utf-8"))
    cells = {(d["algorithm"], d["metric"]): d for d in content["differences"] if d["job"] == "all jobs"}
    rows = []
    for name in content["ranking"]:
        row = [name]
        for metric, scale, digits in (("worst_accuracy", 100, 1), ("worst_loss", 1, 3)):
            d = cells[name, metric]
            mean, low, high = (signed_text(scale * d[key], digits) for key in ("difference", "low", "high"))
            row += [f"{mean} ({low} to {high})", d["verdict"]]
        rows.append(row)
    return markdown(["algorithm", "worst accuracy, points", "verdict", "worst loss", "verdict"], rows, text=1)


BLOCKS: dict[str, Callable[[], str]] = {
    "bench.ranking": bench_ranking,
    **benchmarks.BLOCKS,
    **trial_tables.BLOCKS,
    **tables.BLOCKS,
    **promise.BLOCKS,
    **claims.BLOCKS,
    **stopping_rows.BLOCKS,
    **cluster_coverage.BLOCKS,
    **features.BLOCKS,
    **false_headlines.BLOCKS,
    **leads.BLOCKS,
    **false_model_tables.BLOCKS,
    "architecture.packages": lambda: markdown(["package", "what it is", "begin with"], architecture.table(), text=3),
    "architecture.files": architecture.files,
    "errors.codes": error_codes.table,
    "install.versions": versions.table,
    "testing.algorithm-checks": algorithm_checks,
    "testing.federation-checks": federation_checks,
    "testing.traps": traps,
    "ambiguity.checks": lambda: listed(AMBIGUITY_CHECKS, "what it checks"),
    "ambiguity.traps": ambiguity_traps,
    "tuning.trials": tuning_trials,
    "tuning.spaces": tuning_spaces,
}
"""Page and block → function that writes it."""

FILES: dict[Path, Callable[[], str]] = {
    architecture.PICTURE: architecture.picture,
    decision_guide.PICTURE: decision_guide.picture,
}
"""Files that are written completely."""


def differing_files() -> dict[Path, str]:
    """Return the files of ``FILES`` that are not current, with their correct contents."""
    wanted = {path: make() for path, make in FILES.items()}
    return {path: text for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text}


class PageError(Exception):
    """A page has comments that do not fit ``BLOCKS``."""


def written(page: str, text: str) -> tuple[str, list[str]]:
    """Return a page with current blocks, and the names of those that differed.

    Raises:
        PageError: If a block is unknown, missing, repeated or without an end.
    """
    prose, *found = STARTS.split(text)
    names, tails = found[::2], found[1::2]
    wanted = [name for name in BLOCKS if name.partition(".")[0] == page]
    for name in names:
        if name not in wanted:
            raise PageError(f"{page}: unknown block {name}; scripts/pages.py knows {', '.join(wanted) or '-'}")
    for name in wanted:
        if names.count(name) != 1:
            raise PageError(f"{page}: the block {name} occurs {names.count(name)} times instead of once")
    parts, differing = [prose], []
    for name, tail in zip(names, tails, strict=True):
        if len(ENDS.findall(tail)) != 1:
            raise PageError(f"{page}: after the start of the block {name} expected one line {END.strip()}")
        old, after = ENDS.split(tail)
        new = BLOCKS[name]().strip("\n") + "\n"
        parts += [START.format(name), new, END, after]
        differing += [name] * (new != old)
    if ENDS.search(prose):
        raise PageError(f"{page}: {END.strip()} before any block")
    return "".join(parts), differing


def main() -> int:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a block differs")
    check = parser.parse_args().check
    found = {page: written(page, path.read_text(encoding="utf-8")) for page, path in PAGES.items()}
    for page, (text, differing) in found.items():
        if differing and not check:
            with atomic_write(PAGES[page]) as file:
                file.write(text.encode())
    files = differing_files()
    for path, text in files.items():
        if not check:
            with atomic_write(path) as file:
                file.write(text.encode())
    total = [name for _, differing in found.values() for name in differing] + [path.name for path in files]
    print(f"{'to be written' if check else 'written'}: {', '.join(total) or 'none'}; {len(BLOCKS)} blocks in all")
    return int(check and bool(total))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PageError as error:
        sys.exit(f"pages.py: {error}")
