"""Identity of the models, the data and the software: digests, versions, costs, and how to repeat the runs."""

from __future__ import annotations

import json
import shlex

from drfl.report.content import Block, Code, Fold, Paragraph, Points, Section, TableBlock, TableCell
from drfl.report.evidence import Evidence
from drfl.report.formatting import clean, count, duration
from drfl.report.read_run import number, text
from drfl.report.sections.decisions import label_of
from drfl.report.tables import ledger_table, versions_table

QUESTION = "Which model, which data, which software?"

MODEL, CONFIG, ROWS = "model.safetensors", "config.toml", "test-rows.safetensors"
FEW = (MODEL, CONFIG, ROWS)
"""Files whose digests are shown for each of several runs."""

LONGEST = 2000
"""Maximum length of a configuration line in characters."""

DEPLOYMENT = "drfl deploy run, with a server.toml whose [job] contains this"
NO_SETTINGS = "(the folder contains no configuration)"
NO_DATA = "no digest in the folder"
DATES = "Neither the files of a run nor this report contain a date: the same runs give the same file, byte for byte."
CHECK = (
    "Files: to compute a file's SHA-256, use sha256sum FILE (Linux), shasum -a 256 FILE (macOS) or certutil -hashfile "
    "FILE SHA256 (Windows)."
)
DATA = (
    "Data: a digest (BLAKE2b, 128 bits) of all clients' training, validation and test rows and of their assignment to "
    "clients. The same data give the same digest. It is stored in the file of test rows. A deployment has none, "
    "because the rows stay at the sites."
)


def identity_section(evidence: Evidence) -> Section:
    """Build the section: digests, versions, configurations and commands."""
    import tomli_w

    several = len(evidence.runs) > 1
    rows = [
        [
            clean(run.record.label, 60), *label_of(evidence, run), clean(text(run.record.summary, "dataset"), 60),
            clean(text(run.record.summary, "model"), 60),
            " ".join(clean(text(run.record.summary, key), 24) for key in ("device", "dtype")),
            duration(number(run.record.summary, "wall_seconds")),
        ]
        for run in evidence.runs
    ]  # fmt: skip
    head = ["Folder", "Algorithm", "Seed", "Data set", "Model", "Device", "Time"]

    digests: list[list[str | TableCell]] = []
    for run in evidence.runs:
        names = FEW if several else tuple(run.files)
        digests.append([clean(run.record.label, 60), "data", TableCell(run.data or NO_DATA, mono=bool(run.data))])
        digests += [
            ["", name, TableCell(f"SHA-256 {run.files[name]}", mono=True)] for name in names if name in run.files
        ]
        if MODEL not in run.files:
            digests.append(["", MODEL, "missing"])
    known = TableBlock("Digests", ["Folder", "What", "Digest"], digests, words=3)
    configurations: list[Block] = []
    for group, run in evidence.representatives:
        record, settings = run.record, ""
        if record.config:
            try:
                settings = tomli_w.dumps(record.config)
            except (TypeError, ValueError):  # a configuration built by hand may hold values that TOML cannot represent
                settings = json.dumps(record.config, indent=2, default=str, ensure_ascii=False)
        lines = [clean(line, LONGEST) for line in settings.splitlines()] or [NO_SETTINGS]
        command = clean(f"drfl run {shlex.quote(f'{record.label}/config.toml')}", LONGEST)
        how = DEPLOYMENT if run.is_deployed else f"{command}, from the folder that holds {clean(record.label)}"
        if len(group.runs) > 1 and not run.is_deployed:
            how += "; --seed sets another seed"
        configurations.append(Code(f"To repeat {', seed '.join(label_of(evidence, run))}: {how}", lines))
    if len(evidence.runs) > len(evidence.groups):
        configurations.append(Paragraph("The configurations of other seeds differ only in the seed.", small=True))
    versions = versions_table(evidence.groups)
    blocks: list[Block] = [
        TableBlock("Runs", head, rows, words=7),
        ledger_table(evidence.groups),
        versions or Paragraph("The files of the runs record no software versions."),
        Fold("Digests of data and files", [known, Points([DATA, CHECK, DATES])]),
        Fold("Configurations, and how to repeat the runs", configurations),
    ]
    if several:
        data = [run.data for run in evidence.runs]
        how_many = f"{count(len(set(data)))} digests of data" if all(data) else "digests of data if stored"
        answer = f"{len(data)} models, each identified by the SHA-256 of its file; {how_many}; configurations below."
    else:
        (only,) = evidence.runs
        model = only.files.get(MODEL, "")
        which = f"is the file whose SHA-256 begins with {model[:16]}" if model else "has no file in the folder"
        data = f"the digest of the data is {only.data}" if only.data else "the folder contains no digest of the data"
        answer = f"The model, trained with {clean(only.record.algorithm, 60)}, {which}; {data}."
    return Section("identity", QUESTION, answer, blocks)
