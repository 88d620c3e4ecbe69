"""Two lengths of help: ``--help`` shows the options that most people need, ``--help-all`` shows every option.

An option that only ``--help-all`` shows is declared with ``hidden=True``, see :func:`drfl.cli.options.option`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command with a short and a long help.

    Args:
        name: Name of the command.
        params: Its arguments and options. Those that are hidden appear in the long help, in shell completion and in
            the documentation, but not in the short help.
        attributes: See :class:`typer.core.TyperCommand`.
    """

    def __init__(self, name: str | None, *, params: Sequence[Any] | None = None, **attributes: Any) -> None:  # noqa: ANN401
        params = [*(params or ())]
        # The lines of a docstring are longer than many terminals, so a paragraph is broken into lines only once.
        paragraphs = (attributes.get("help") or "").split("\n\n")
        attributes["help"] = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        self.rare = {param.name for param in params if getattr(param, "hidden", False)}
        for param in params:
            param.hidden = False
            if not self.rare:
                vars(param)["rich_help_panel"] = None  # a few options need no groups
            # The help of a setting describes its default, because the option itself has none.
            if param.default is not False and isinstance(param.default, str | int | float):
                param.help, param.show_default = f"{param.help} (default: {param.default})", False
        super().__init__(name, params=[*params, _help_all(hidden=not self.rare)], **attributes)

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - of click, or of typer's copy of it
        """Write the short help, or the whole help if the command has no rare options."""
        if not self.rare:
            super().format_help(ctx, formatter)
            return
        short = copy.copy(self)
        short.rare = set()
        short.params = [copy.copy(param) for param in self.params if param.name not in self.rare]
        for param in short.params:
            vars(param)["rich_help_panel"] = None
        short.epilog = f"{len(self.rare)} more options: {ctx.command_path} --help-all"
        short.format_help(ctx, formatter)


class CommandGroup(TyperGroup):
    """A group of commands, which accepts ``--help-all`` too."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401
        super().__init__(**attributes)
        self.params.append(_help_all(hidden=True))


def _show_all(context: typer.Context, value: bool) -> None:
    if value and not context.resilient_parsing:
        command = copy.copy(context.command)
        vars(command)["rare"] = set()
        typer.echo(command.get_help(context))
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        help="Show all options, in groups, and exit.",
        is_eager=True,
        expose_value=False,
        callback=_show_all,
    ),
]


def _help_all(hidden: bool) -> Any:  # noqa: ANN401
    # Let typer make the option from an annotation: the constructor of its option class differs between versions.
    app = typer.Typer(add_completion=False)

    @app.command()
    def command(help_all: HelpAll = False) -> None: ...

    option = typer.main.get_command(app).params[0]
    vars(option)["hidden"] = hidden
    return option
