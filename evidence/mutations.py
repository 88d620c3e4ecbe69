"""List which checks of the conformance suite reject which deliberately wrong variant.

    python evidence/mutations.py [--smoke]

All checks are applied to each wrong variant of ``tests/conformance/wrong``, with the claims in the conformance row of
the correct algorithm, and to all correct algorithms and ambiguity sets. A check that fails only because of an error in
the variant does not count. The script writes ``results/mutations/table.md`` and ``results/mutations/mutations.json``.
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path

import torch

import script

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "mutations"
STRIDE = script.sized(1, 40)
"""Examine every algorithm, set and wrong variant whose index is a multiple of this number."""


def report_on(subject):
    """Run the checks that apply to the subject."""
    from drfl.testing import AmbiguitySubject, Subject, examine_algorithm, examine_ambiguity, examine_federation

    if isinstance(subject, AmbiguitySubject):
        return examine_ambiguity(subject.ambiguity, n=subject.n, draws=subject.draws, seed=subject.seed)
    return examine_algorithm(subject) if isinstance(subject, Subject) else examine_federation(subject)


def examined(subject) -> dict[str, list[str]]:
    """Checks by result: passed, rejected, broken (the variant raised an error), not applicable."""
    report = report_on(subject)
    broken = [note.check for note in report.failed if note.sentence.startswith("raised ")]
    return {
        "passed": list(report.passed),
        "rejected": [note.check for note in report.failed if note.check not in broken],
        "broken": broken,
        "not_applicable": [note.check for note in report.not_applicable],
        "sentences": [str(note) for note in report.failed],
    }


def right_ones() -> dict:
    """The correct subjects: every algorithm with its row's claims, and every ambiguity set."""
    from drfl.testing import AmbiguitySubject

    rows, cases = importlib.import_module("tests.conformance.rows"), importlib.import_module("tests.ambiguity.cases")
    sets = {name: AmbiguitySubject(make(8)) for name, make in cases.CASES.items()}
    return {name: row.subject() for name, row in rows.ROWS.items()} | sets


def table(records: list[dict]) -> str:
    lines = ["| part | mistake | wrong variant | rejected by |", "| --- | --- | --- | --- |"]
    for record in records:
        checks = ", ".join(f"`{check}`" for check in record["rejected"])
        lines.append(
            f"| {record['part']} | {record['mistake'].replace('|', chr(92) + '|')} | `{record['variant']}` | {checks} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    sys.path.insert(0, str(ROOT))
    traps = importlib.import_module("tests.conformance.wrong.traps")
    from drfl.experiments.run.artifacts import versions

    torch.set_num_threads(1)
    right = {}
    for name, subject in list(right_ones().items())[::STRIDE]:
        start = time.process_time()
        right[name] = examined(subject)
        right[name]["cpu_seconds"] = round(time.process_time() - start, 2)
        print(f"{name}: {len(right[name]['passed'])} passed, {right[name]['sentences'] or 'none failed'}", flush=True)
    records = []
    for trap in (*traps.ALGORITHM_TRAPS, *traps.FEDERATION_TRAPS, *traps.AMBIGUITY_TRAPS)[::STRIDE]:
        records.append(
            {"part": trap.part, "mistake": trap.mistake, "variant": trap.variant, **examined(trap.subject())}
        )
        print(f"{trap.part}, {trap.mistake}: {', '.join(records[-1]['rejected'])}", flush=True)
    about = {"command": "python evidence/mutations.py", "versions": versions(), "right": right, "wrong": records}
    script.store(options.out, {"table.md": table(records), "mutations.json": about})


if __name__ == "__main__":
    main()
