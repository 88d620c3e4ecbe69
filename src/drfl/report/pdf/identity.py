"""Which model, which data, which software: digests, versions, and how to make the runs again."""

from __future__ import annotations

from drfl.report.configurations import configurations
from drfl.report.content import TableBlock
from drfl.report.formatting import count, duration
from drfl.report.pdf.content import Block, Digests, Listing, Paragraph, Points, Question
from drfl.report.pdf.decisions import label_of
from drfl.report.pdf.evidence import Evidence
from drfl.report.pdf.names import printable, without_folders
from drfl.report.read_run import number, text
from drfl.report.tables import versions_table

ASKED = "Which model, which data, which software?"

MODEL, CONFIG, ROWS = "model.safetensors", "config.toml", "test-rows.safetensors"
FEW = (MODEL, CONFIG, ROWS)
"""Files whose digests are here of each of several runs."""

DEPLOYMENT = "drfl deploy run, with a server.toml whose [job] says this"
NO_SETTINGS = "(its folder keeps no configuration)"
NO_DATA = "no digest in the folder"
DATES = "A run's files hold no date, so that this report has none: the same runs give the same file, byte for byte."
CHECK = (
    "Files: sha256sum FILE (Linux), shasum -a 256 FILE (macOS) or certutil -hashfile FILE SHA256 (Windows) gives a "
    "file's SHA-256."
)
DATA = (
    "Data: a digest (BLAKE2b, 128 bits) of all clients' training, validation and test rows and of who holds which; "
    "drfl gives the same one for the same data, and keeps it in the file of test rows. A deployment keeps none, as the "
    "rows stay at the sites."
)


def identified(evidence: Evidence) -> Question:
    """The section: digests, versions, configurations and commands."""
    several = len(evidence.runs) > 1
    rows = [
        [
            printable(run.record.label, 60), *label_of(evidence, run).rsplit(", seed ", 1),
            printable(text(run.record.summary, "dataset"), 60), printable(text(run.record.summary, "model"), 60),
            " ".join(printable(text(run.record.summary, key), 24) for key in ("device", "dtype")),
            duration(number(run.record.summary, "wall_seconds")),
        ]
        for run in evidence.runs
    ]  # fmt: skip
    head = ["Folder", "Algorithm", "Seed", "Data set", "Model", "Device", "Time"]
    blocks: list[Block] = [TableBlock("Runs", head, rows, words=7)]

    digests: list[tuple[str, str, str]] = []
    for run in evidence.runs:
        names = FEW if several else tuple(run.files)
        digests.append((printable(run.record.label, 60), "data", run.data or NO_DATA))
        digests += [("", printable(name, 60), f"SHA-256 {run.files[name]}") for name in names if name in run.files]
        if MODEL not in run.files:
            digests.append(("", MODEL, "not there"))
    blocks += [Digests("What data and files are known by", digests), Points([DATA, CHECK, DATES])]
    versions = versions_table(evidence.groups)
    blocks.append(versions or Paragraph("The runs' files name no versions of software."))

    for group, made in zip(evidence.groups, configurations(evidence.groups), strict=True):
        run = evidence.first_of(group)
        command = DEPLOYMENT if run.deployed else made.command
        lines = [without_folders(line) for line in made.settings.splitlines()] or [NO_SETTINGS]
        blocks.append(Listing(f"To repeat {label_of(evidence, run)}: {printable(command)}", lines))
    if len(evidence.runs) > len(evidence.groups):
        blocks.append(Paragraph("Runs of other seeds differ in the line of the seed.", small=True))

    if several:
        data = [run.data for run in evidence.runs]
        known = f"{count(len(set(data)))} digests of data" if all(data) else "digests of data where kept"
        answer = f"{len(data)} models, each known by the SHA-256 of its file; {known}; configurations below."
    else:
        (only,) = evidence.runs
        model = only.files.get(MODEL, "")
        which = f"is the file whose SHA-256 begins {model[:16]}" if model else "has no file in the folder"
        data = f"the digest of the data is {only.data}" if only.data else "the folder keeps no digest of the data"
        answer = f"The model, trained with {printable(only.record.algorithm, 60)}, {which}; {data}."
    return Question(ASKED, answer, blocks)
