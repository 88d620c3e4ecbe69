"""The commands of this package, which drfl's command line loads as plugins through entry points."""

from __future__ import annotations

from drfl.cli import options as o
from drfl.cli import signals
from drfl_papers.commands.options import SEVERAL, BenchOptions, EnergyOptions, ReproduceOptions


@o.command(BenchOptions)
def bench(options: BenchOptions) -> int:
    """Rank algorithms on a suite of small jobs.

    The table shows each algorithm's difference from FedAvg, paired over seeds. Nothing is downloaded.
    Finished runs are stored. After an interruption, run the same command to continue.
    """
    from drfl_papers.commands.bench import bench_command

    with signals.raise_on_signal():
        return bench_command(options)


@o.command(ReproduceOptions)
def reproduce(options: ReproduceOptions) -> int:
    """Reproduce tables and figures of the papers, or list them.

    The results show our numbers beside the paper's.
    Finished cells are stored. After an interruption, run the same command to continue.
    """
    from drfl_papers.commands.reproduce import reproduce_command

    with signals.raise_on_signal():
        return reproduce_command(options)


@o.command(EnergyOptions, several=SEVERAL)
def energy(options: EnergyOptions) -> int:
    """Find the number of local steps that needs the least energy.

    drfl compares the energy needed to reach a target accuracy, for each SNR and bandwidth.
    """
    from drfl_papers.commands.energy import energy_command

    with signals.raise_on_signal():
        return energy_command(options)
