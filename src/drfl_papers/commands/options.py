"""The options of `drfl bench`, `drfl reproduce` and `drfl energy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from drfl.cli.options import JOB, DataDir, File, Given, Jobs, Json, Out, Overwrite, Param, Ray, Trust, option, setting
from drfl.experiments.config.settings import DATA, EXECUTION, OUTPUT, TRAINING

SEVERAL: Mapping[str, bool] = {"--snr": True, "--bandwidth": True, "--steps": True, "--runs": False}
"""Options of `drfl energy` that take several values, and whether these values are numbers."""


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions:
    """The options of ``drfl reproduce``."""

    names: Annotated[
        list[str] | None, typer.Argument(help="Tables and figures, e.g. drdm-table-3 (default: list them)")
    ] = None
    everything: Annotated[bool, option("Run all tables and figures", None, "--all", common=True)] = False
    quick: Annotated[
        bool, option("Run few repeats and rounds; results go to a separate folder", None, "--quick", common=True)
    ] = False
    repeats: Annotated[
        int | None, option("Number of seeds (default: the specification's)", EXECUTION, common=True, at_least=1)
    ] = None
    rounds: Annotated[
        int | None, option("Number of rounds (default: the specification's)", TRAINING, common=True, at_least=1)
    ] = None
    only: Annotated[
        str | None, option("Run only these settings, e.g. 'alpha = 0.1, alpha = 0.5'", TRAINING, "--settings")
    ] = None
    data: Annotated[
        str, option("original, stand-in, or auto (the paper's data if they are available)", DATA, common=True)
    ] = "auto"
    tuned: Annotated[Path | None, option("Folder of hyperparameter files made by 'drfl tune'", TRAINING)] = None
    jobs: Jobs = None
    ray: Ray = None
    data_dir: DataDir = None
    device: Annotated[str | None, setting("device")] = None
    out: Annotated[Path | None, option("Folder of results (default: runs/papers)", OUTPUT, common=True)] = None
    overwrite: Annotated[bool, option("Replace a result of another size", OUTPUT, "--overwrite")] = False
    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of ``drfl bench``."""

    names: Annotated[
        str | None,
        option(
            "Comma-separated algorithms, FILE.py:NAME included",
            TRAINING,
            "--algorithms",
            default="SCAFFOLD, DRFA, DRDM, DualDRDM, ScaffPD",
            common=True,
        ),
    ] = None
    suite_jobs: Annotated[
        str | None, option("Run only these jobs, e.g. hospitals,digits-one-class", DATA, "--suite", common=True)
    ] = None
    seeds: Annotated[int, option("Seeds per algorithm and job", EXECUTION, common=True, at_least=1)] = 5
    rounds: Annotated[int, option("Rounds of communication", TRAINING, common=True, at_least=1)] = 50
    jobs: Jobs = None
    out: Annotated[Path | None, option("Folder of results", OUTPUT, default="bench", common=True)] = None
    as_json: Json = False


MEASURING, CHANNELS, DEVICES = "Rounds to the target", "Channels", "Devices"


@dataclass(frozen=True, kw_only=True)
class EnergyOptions:
    """The options of ``drfl energy``."""

    config: File = None
    algorithm: Annotated[
        str | None, option("Algorithm; see 'drfl algorithms' (default: DRDM)", MEASURING, common=True)
    ] = None
    target_worst: Annotated[float, option("Worst client's accuracy to reach, in (0, 1]", MEASURING, common=True)] = 0.8
    steps: Annotated[
        list[int] | None,
        option("Local steps τ to try, e.g. 1 5 10 (default: 1 5 10 15 20 25 30)", MEASURING, common=True),
    ] = None
    seeds: Annotated[
        str | None, option("Number of seeds (from 0), list 0,1,2 or range 10..14 (default: 3)", MEASURING, common=True)
    ] = None
    rounds: Annotated[
        int | None,
        option("Rounds after which the target counts as never reached (default: 300)", MEASURING, common=True),
    ] = None
    measurements: Annotated[
        Path | None,
        option("CSV file with columns tau, seed, rounds (empty = never), instead of new runs", MEASURING),
    ] = None
    runs: Annotated[
        list[Path] | None, option("Run folders, one per τ and seed, instead of new runs", MEASURING, common=True)
    ] = None
    snr: Annotated[
        list[float] | None,
        option("Signal-to-noise ratios in dB, e.g. 0 10 (default: 0 5 10 15 20)", CHANNELS, common=True),
    ] = None
    bandwidth: Annotated[
        list[float] | None, option("Bandwidths per client in Hz (default: 1e5 1e6 1e7)", CHANNELS, common=True)
    ] = None
    fading: Annotated[bool, option("Rayleigh fading with outage; requires --rate-min", CHANNELS, "--fading")] = False
    rate_min: Annotated[float | None, option("Rate in bit/s below which a client is in outage", CHANNELS)] = None
    power: Annotated[float | None, option("Transmit power in W (default: 0.2, a handset's 23 dBm)", DEVICES)] = None
    downlink: Annotated[
        float | None, option("Power in W while receiving (default: the downlink does not count)", DEVICES)
    ] = None
    frequency: Annotated[float | None, option("CPU frequency in Hz (default: 1e9)", DEVICES)] = None
    capacitance: Annotated[float | None, option("Effective switched capacitance κ (default: 1e-28)", DEVICES)] = None
    cycles_per_sample: Annotated[
        float | None,
        option("CPU cycles per sample's gradient (default: one per floating-point operation)", DEVICES),
    ] = None
    joules_per_step: Annotated[
        float | None, option("Measured energy of a local step in J, instead of κf²·cycles", DEVICES)
    ] = None
    settings: Annotated[Given, JOB]
    param: Param = None
    trust: Trust = False
    out: Out = None
    overwrite: Overwrite = False
    as_json: Json = False
