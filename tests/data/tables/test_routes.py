"""The same files give the same inputs, targets and split in a simulation, from a data frame and at deployed sites."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from drfl import Natural
from drfl.data import ClientData
from drfl.data.table_description import describe
from drfl.data.tables.schema import Column
from drfl.data.tables.table_files import read_tables
from drfl.flower.site_data import load_site


def sites(folder, permuted=()):
    """Four files with numbers, categories, dates and blanks, some with their columns in another order."""
    frames = {}
    (folder / "sites").mkdir(parents=True)
    for seed, name in enumerate("abcd"):
        rng, n = np.random.default_rng(seed), 90
        days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D")
        frame = pd.DataFrame(
            {
                "age": rng.normal(60, 10, n).round(),
                "creatinine": rng.normal(1.1, 0.2, n).round(2),
                "sex": rng.choice(["m", "f"], n),
                "stage": rng.choice(["I", "II", "III"], n),
                "seen": days.strftime("%Y-%m-%d"),
                "ill": rng.choice(["no", "yes"], n),
            }
        )
        frame.loc[rng.choice(n, 6, replace=False), "creatinine"] = np.nan
        order = list(frame.columns[::-1] if name in permuted else frame.columns)
        frame[order].to_csv(folder / "sites" / f"{name}.csv", index=False)
        frames[name] = frame
    return frames


def test_all_routes_give_the_same_tensors_and_split(tmp_path):
    frames = sites(tmp_path, permuted="c")
    schema = describe([tmp_path / "sites"], "ill").schema
    schema.write(tmp_path / "schema.toml")
    simulated = ClientData.from_dataset(read_tables([tmp_path / "sites"], schema=schema), Natural())
    assert simulated.names == tuple("abcd")

    whole = pd.concat([frame.assign(site=name) for name, frame in frames.items()], ignore_index=True)
    named = replace(schema, columns=(*schema.columns, Column("site", "text", role="client")))
    framed = ClientData.from_frame(whole, schema=named)
    assert torch.equal(framed.inputs, simulated.inputs)
    assert torch.equal(framed.targets, simulated.targets)
    assert all(map(torch.equal, framed.test, simulated.test))

    start = 0
    for k, name in enumerate("abcd"):
        path = tmp_path / f"{name}.toml"
        text = f'csv = "sites/{name}.csv"\nschema = "schema.toml"\n'
        path.write_text(f'name = "{name}"\ndtype = "float64"\n[data]\n{text}')
        site = load_site(path)
        rows = slice(start, start + len(site.inputs))
        inputs = site.standardised(simulated.standardisation).inputs.float()
        assert torch.equal(inputs, simulated.inputs[rows])
        assert torch.equal(site.targets, simulated.targets[rows])
        assert torch.equal(site.test[0] + start, simulated.test[k])
        start = rows.stop


def test_the_order_of_columns_at_one_site_changes_nothing(tmp_path):
    sites(tmp_path / "plain"), sites(tmp_path / "permuted", permuted="bd")
    schema = describe([tmp_path / "plain" / "sites"], "ill").schema
    plain, permuted = (read_tables([tmp_path / name / "sites"], schema=schema) for name in ("plain", "permuted"))
    assert torch.equal(plain.inputs.nan_to_num(-1), permuted.inputs.nan_to_num(-1))
    assert torch.equal(plain.targets, permuted.targets)
    for name in ("plain", "permuted"):
        data = read_tables([tmp_path / name / "sites"], "ill", drop=["seen", "creatinine"])
        assert data.columns == ("age", "sex_m", "stage_II", "stage_III")
