"""How a command fails: one line on stderr that says what is wrong and what to do, and an exit code.

0: done. 1: refused, or the run failed. 2: the command itself was written wrongly.
"""

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

REFUSED, USAGE = 1, 2

EXPECTED = frozenset(
    {
        "parley.client.RequestRefused",
        "parley.dashboard.tokens.TokenRefused",
        "parley.datasets.DatasetError",
        "parley.local.ProcessEnded",
        "parley.modules.ModuleRefused",
        "parley.splitting.SplitError",
        "parley.services.wire.audit.AuditBroken",
        "parley.services.wire.certificate_files.CertificateError",
        "parley.services.wire.configuration.ConfigInvalid",
        "parley.spec.algorithms.AlgorithmUnknown",
        "parley.spec.parsing.SpecInvalid",
        "parley.spec.rows.RowsUnavailable",
        "parley.storage.backups.BackupRefused",
        "parley.tables.errors.TableError",
    }
)
"""Errors whose text is written for the user, by name: naming them here imports none of their modules."""


class Refused(Exception):
    """A command cannot do what it was asked; the text says why and what to do."""


def is_expected(error: BaseException) -> bool:
    """Whether an error's own text tells the user enough."""
    if isinstance(error, (OSError, Refused, UnicodeDecodeError)):
        return True
    return any(f"{kind.__module__}.{kind.__qualname__}" in EXPECTED for kind in type(error).__mro__)


def sentence(error: BaseException) -> str:
    """An error as one line."""
    if isinstance(error, OSError) and error.strerror:
        remedy = "check the path" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else "check permissions"
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{error.strerror}: {remedy}" if place else error.strerror
    if isinstance(error, UnicodeDecodeError):
        return f"a file is not UTF-8 text ({error.reason} at byte {error.start}): name a text file"
    return " ".join(str(error).split()) or type(error).__name__


class OneLineErrors(TyperGroup):
    """A group of commands whose expected errors end in one line; anything else is a bug and keeps its trace."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader has seen enough, such as `head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from None
        except Exception as error:
            if not is_expected(error):
                raise
            typer.echo(f"error: {sentence(error)}", err=True)
            raise typer.Exit(REFUSED) from None
