"""The models, the loss and the metrics of a deployment's job as messages have them, with the user's code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from drfl.core.errors import InputError
from drfl.core.user_code import digests, is_reference, label_of, load
from drfl.experiments.config.learned import model_source
from drfl.flower.messages import CODE_NAME, MOST_FILES, MOST_NAME, CodeFile
from drfl.flower.settings import DeployedConfig
from drfl.task.models import LOSSES


class JobCode(NamedTuple):
    """The models, the loss and the metrics of a job.

    Args:
        folder: Folder of ``server.toml``.
        models: Digests of the files of models of the user's, by reference.
        names: References as messages have them, relative to the folder.
        loss: Name of the loss, or a reference as messages have it.
        metrics: The same of the metrics, the score first.
        files: The files of all references.
    """

    folder: Path
    models: Mapping[str, Mapping[str, str]]
    names: Mapping[str, str]
    loss: str
    metrics: tuple[str, ...]
    files: tuple[CodeFile, ...]

    def reference_of(self, module: Mapping[str, Any]) -> str | None:
        """Return the reference, as messages have it, to the code of the module in a model file; None for other code."""
        recorded = str(module.get("reference"))
        wanted: Mapping[str, str] = module.get("sha256", {})
        # Compare digests, not paths: the model may have been trained on a machine with other folders.
        main = wanted.get(Path(recorded.rpartition(":")[0]).as_posix())
        for reference, known in self.models.items():
            is_same = main == known[Path(reference.rpartition(":")[0]).as_posix()]
            if is_same and label_of(reference) == label_of(recorded) and {*wanted.values()} <= {*known.values()}:
                return self.names[reference]
        return None

    def source_of(self, name: str, shape: tuple[int, ...], classes: int) -> dict[str, object]:
        """Return the origin of the job's module for the model file, which sites receive: with paths as in messages."""
        source = model_source(name, shape, classes)
        if name not in self.names:
            return source
        files = {sent_path(path, self.folder): digest for path, digest in self.models[name].items()}
        return {**source, "reference": self.names[name], "sha256": files}

    def loss_of(self, name: str) -> str | None:
        """Return the loss of a model file, as messages have it; None if it is neither drfl's nor that of the job."""
        if name in LOSSES:
            return name
        return self.loss if is_reference(self.loss) and label_of(self.loss) == label_of(name) else None


def sent_path(path: str, folder: Path) -> str:
    """Return the path of a file as messages have it: relative to the folder of ``server.toml``."""
    try:
        return Path(path).resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        raise InputError(
            f"'{path}' is not in the folder of server.toml. Copy it there, and to the same place at every site",
            code="wrong-folder",
            field="job",
        ) from None


def job_code(config: DeployedConfig, folder: Path, models: Sequence[str] = ()) -> JobCode:
    """Load the user's code of a job, which the server's operator has named.

    Names in messages are relative to ``folder``. ``models`` are references to further models.
    """
    own = [reference for reference in (config.model, *models) if is_reference(reference)]
    others = [text for text in (config.loss, config.score, *(config.metrics or ())) if text is not None]
    references = [*own, *filter(is_reference, others)]
    names, files = dict[str, str](), dict[str, str]()
    for reference in references:
        load("code", reference)  # the digests include the modules that it imports
    for reference in references:
        place, _, name = reference.rpartition(":")
        names[reference] = f"{sent_path(place, folder)}:{name}"
        files |= {sent_path(path, folder): digest for path, digest in digests(reference).items()}
    for name in files:
        if not re.fullmatch(CODE_NAME, name):
            raise InputError(
                f"the path '{name}' may only have letters, digits, - and _, before .py. Rename the file",
                code="invalid-name",
                field="job",
            )
    for name in (*files, *names.values()):
        if len(name) > MOST_NAME:
            raise InputError(
                f"'{name}' has {len(name)} characters, and messages to the sites have room for {MOST_NAME}. Use a "
                "shorter path or name",
                code="invalid-name",
                field="job",
            )
    if len(files) > MOST_FILES:
        raise InputError(
            f"the job's code has {len(files)} files, and sites accept at most {MOST_FILES}. Import fewer files",
            code="out-of-range",
            field="job",
        )
    scores = [config.score, *(config.metrics or ())]
    return JobCode(
        folder, {reference: digests(reference) for reference in own}, names, names.get(config.loss, config.loss),
        tuple(names.get(str(text), metric.name) for text, metric in zip(scores, config.measures, strict=True)),
        tuple(CodeFile(name, digest) for name, digest in sorted(files.items())),
    )  # fmt: skip
