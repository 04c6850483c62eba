# SPDX-License-Identifier: Apache-2.0
"""The ``verl-entropy`` command: a table of commands, of which only the one that is asked for is imported.

A command is a module with ``add_arguments(parser)`` and ``run(args) -> int``. Bad input raises ValueError (ConfigError,
RunFileError) or OSError with a message for the user; it is printed here in one line, and the exit code is 2.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from verl_entropy import __version__

OK, FOUND, BAD_INPUT = 0, 1, 2
"""Exit codes of every command: done; done, and it found what ``Command.found`` says; wrong input or something missing."""
INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""
WIDTH = 80


@dataclass(frozen=True)
class Command:
    """One command."""

    name: str
    help: str
    found: str = ""
    """What exit code 1 means; empty: never returned."""

    @property
    def module(self) -> str:
        return "verl_entropy.commands." + self.name.replace("-", "_")

    def load(self) -> ModuleType:
        """Import the command."""
        return importlib.import_module(self.module)


COMMANDS: tuple[Command, ...] = (
    Command("list", "methods and presets, with the key that selects each"),
    Command("explain", "one method: equation, source, when to use it, cost, settings, what it combines with"),
    Command(
        "check", "the contract that every method keeps, on one of ours or on your own (package.module:NAME)", "a check failed"
    ),
    Command("glossary", "every metric that a run logs: formula, unit, source"),
    Command("doctor", "check the installation, the plugin in a Ray worker, and a configuration", "a check failed"),
    Command(
        "validate",
        "compose verl's configuration, check it, print the plan and the memory it needs",
        "with --strict a warning",
    ),
    Command("data", "make the data files of an environment"),
    Command("evaluate", "success of a checkpoint on an environment's tasks"),
    Command("report", "one HTML page with figures and trajectories of one or more runs"),
    Command("watch", "serve that page on this machine while the runs go on"),
    Command("diff", "configuration and metric differences of two runs", "the runs differ"),
    Command("advise", "symptoms of a run and the methods meant for them", "there are symptoms"),
    Command("judge", "rate how degenerate sampled texts are, with a language model", "some could not be judged"),
    Command("strip-head", "copy a checkpoint without the SEAL head, for stock verl"),
    Command("reshard", "make a checkpoint loadable on another number of ranks"),
    Command("table", "the tables of the READMEs, in Markdown"),
)


def exit_codes(command: Command) -> str:
    """The exit codes of a command, in one line."""
    found = f"{FOUND} {command.found}; " if command.found else ""
    return f"exit codes: {OK} done; {found}{BAD_INPUT} wrong input or something is missing"


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=WIDTH)


def parser(name: str | None = None) -> argparse.ArgumentParser:
    """The command line; with the arguments of command ``name`` only, the others being names with a line of help."""
    root = argparse.ArgumentParser(
        prog="verl-entropy",
        description="Entropy control for reinforcement learning of LLM agents with verl.",
        epilog=textwrap.fill(
            "exit codes: 0 done; 1 done, and the command found what it looks for (see its --help); 2 wrong input or "
            "something is missing, with the fix in one line on stderr.",
            WIDTH,
        ),
        formatter_class=_Formatter,
    )
    root.add_argument("--version", action="version", version=f"verl-entropy {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        sub = commands.add_parser(
            command.name,
            help=command.help,
            description=textwrap.fill(command.help[0].upper() + command.help[1:] + ".", WIDTH),
            epilog=textwrap.fill(exit_codes(command), WIDTH),
            formatter_class=_Formatter,
        )
        if command.name == name:
            module = command.load()
            module.add_arguments(sub)
            sub.description = "\n\n".join(textwrap.fill(part, WIDTH) for part in (sub.description or "").split("\n\n"))
            words = [action.dest for action in sub._actions if action.nargs in ("*", "+") and not action.option_strings]
            sub.set_defaults(run=module.run, words_go_to=words)
    return root


def _name(argv: Sequence[str]) -> str | None:
    """The command in ``argv``: its first word, for the root has no option with a value."""
    names = {command.name for command in COMMANDS}
    first = next((word for word in argv if not word.startswith("-")), None)
    return first if first in names else None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _missing(error: ImportError) -> str:
    """What to install for a module that is not there."""
    top = (error.name or "").split(".")[0]
    extra = {"matplotlib": "report", "pyarrow": "report", "jinja2": "report", "plotly": "report"}.get(top, "cpu")
    what = f"pip install 'verl-entropy[{extra}]'" + ("" if extra == "report" else " (or [vllm] on a GPU host)")
    return f"this command needs {top or 'a module'}, which cannot be imported ({_one_line(error)}). Fix: {what}."


FOREIGN = (
    "jinja2",
    "tokenizers",
    "safetensors",
    "hydra",
    "omegaconf",
    "yaml",
    "antlr4",
    "pyarrow",
    "torch",
    "transformers",
    "huggingface_hub",
)
"""Libraries whose exceptions at the command line mean wrong input. tokenizers and safetensors raise a bare Exception or a class of
their own."""


def _is_foreign(error: BaseException) -> bool:
    """Whether a library that reads the user's input raised ``error``: by its class, or by where it was raised."""
    if {base.__module__.split(".")[0] for base in type(error).__mro__} & set(FOREIGN):
        return True
    return type(error) is Exception  # what tokenizers raises from Rust


def _unknown_command(argv: Sequence[str]) -> str | None:
    """What to say of a first word that is no command."""
    word = next((word for word in argv if not word.startswith("-")), None)
    names = [command.name for command in COMMANDS]
    if word is None or word in names:
        return None
    from verl_entropy.config.spelling import did_you_mean

    return f"{word}: no such command.{did_you_mean(word, names)} Known: {', '.join(names)}."


def _say(name: str | None, message: str, as_json: bool) -> int:
    """The one line about wrong input on stderr; with --json also {"error": ...} on stdout."""
    if as_json:
        print(json.dumps({"error": message, "command": name, "exit_code": BAD_INPUT}, indent=1))
    print("verl-entropy" + (f" {name}" if name else "") + f": {message}", file=sys.stderr)
    return BAD_INPUT


def _parsed(root: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The arguments; words that follow an option join the words before it, which argparse by itself refuses."""
    args, rest = root.parse_known_args(argv)
    places = vars(args).pop("words_go_to", [])
    if rest and (not places or any(word.startswith("-") for word in rest)):
        root.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        setattr(args, places[0], [*(getattr(args, places[0]) or []), *rest])
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    name, as_json = _name(argv), "--json" in argv
    if (unknown := _unknown_command(argv)) is not None:
        return _say(None, unknown, as_json)
    try:
        try:
            args = _parsed(parser(name), argv)
        except SystemExit as stop:  # argparse has said it on stderr
            if as_json and stop.code == BAD_INPUT:
                print(json.dumps({"error": "wrong arguments, see stderr", "command": name, "exit_code": BAD_INPUT}, indent=1))
            raise
        return args.run(args)
    except ImportError as error:
        message = _missing(error)
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader (head, less) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        message = _one_line(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if not _is_foreign(error):
            raise  # a fault of ours: the traceback is of use
        message = (
            f"{_one_line(error)} ({type(error).__module__}.{type(error).__name__}). Fix: mend or replace the file or word named."
        )
    return _say(name, message, as_json)


if __name__ == "__main__":
    sys.exit(main())
