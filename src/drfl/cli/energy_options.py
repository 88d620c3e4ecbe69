"""The options of ``drfl energy`` alone; like `drfl.cli.options` they need typer and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MEASURING, CHANNELS, DEVICES = "Rounds to the target", "Channels", "Devices"


def _option(help_text: str, panel: str, *names: str) -> object:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, show_default=False)


AlgorithmName = Annotated[
    str | None, _option("Algorithm; see 'drfl algorithms'. (default: DRDM)", MEASURING, "--algorithm")
]
TargetWorst = Annotated[float | None, _option("Worst client's accuracy to reach, in (0, 1]. (default: 0.8)", MEASURING)]
StepsList = Annotated[
    list[int] | None, _option("Local steps τ to try, e.g. 1 5 10. (default: 1 5 10 15 20 25 30)", MEASURING, "--steps")
]
SeedsText = Annotated[
    str | None, _option("How many (from 0), a list 0,1,2 or a range 10..14. (default: 3)", MEASURING, "--seeds")
]
MostRounds = Annotated[
    int | None, _option("A run that takes more never reaches the target. (default: 300)", MEASURING, "--rounds")
]
Measurements = Annotated[
    Path | None,
    _option("CSV file with columns tau, seed, rounds (empty = never) in place of runs made now.", MEASURING),
]
RunsList = Annotated[
    list[Path] | None, _option("Run directories, one a τ and seed, in place of runs made now.", MEASURING, "--runs")
]
Snr = Annotated[
    list[float] | None, _option("Signal-to-noise ratios in dB, e.g. 0 10. (default: 0 5 10 15 20)", CHANNELS, "--snr")
]
Bandwidth = Annotated[
    list[float] | None, _option("Bandwidths in Hz a client. (default: 1e5 1e6 1e7)", CHANNELS, "--bandwidth")
]
Fading = Annotated[bool, _option("Rayleigh fading with outage; needs --rate-min.", CHANNELS, "--fading")]
RateMin = Annotated[float | None, _option("Rate in bit/s below which a client is in outage.", CHANNELS)]
Power = Annotated[float | None, _option("Transmit power in W. (default: 0.2, a handset's 23 dBm)", DEVICES)]
Downlink = Annotated[
    float | None, _option("Power in W while receiving. (default: the downlink does not count)", DEVICES)
]
Frequency = Annotated[float | None, _option("CPU frequency in Hz. (default: 1e9)", DEVICES)]
Capacitance = Annotated[float | None, _option("Effective switched capacitance κ. (default: 1e-28)", DEVICES)]
CyclesPerSample = Annotated[
    float | None, _option("CPU cycles for a sample's gradient. (default: one a floating-point operation)", DEVICES)
]
JoulesPerStep = Annotated[float | None, _option("Measured energy of a local step, in place of κf²·cycles.", DEVICES)]
