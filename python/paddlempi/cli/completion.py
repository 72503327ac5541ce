"""``python -m paddlempi completion bash``: a script with which the shell completes ``paddlempi``.

It is made from the parser, so it has every command, option and choice, and it does not start Python
when a user presses Tab. Where a word is neither, the shell completes names of files.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

__all__ = ["add_to", "script"]


class _Command(NamedTuple):
    words: tuple[str, ...]
    """As ``("trace", "dump")``; ``()`` for paddlempi itself."""
    help: str
    parser: argparse.ArgumentParser


def add_to(commands: Any, whole: Callable[[], argparse.ArgumentParser]) -> None:
    """Add the command to the parser of ``python -m paddlempi``, which ``whole`` returns."""
    parser = commands.add_parser(
        "completion",
        help="print a script with which bash, zsh or fish completes paddlempi",
        description="Prints a script. For bash and zsh, in ~/.bashrc or ~/.zshrc (there after "
        'compinit): eval "$(paddlempi completion bash)". For fish: paddlempi completion fish > '
        "~/.config/fish/completions/paddlempi.fish",
    )
    parser.add_argument("shell", choices=tuple(_SCRIPTS))
    parser.set_defaults(run=lambda chosen: _print(chosen.shell, whole()), parser=parser)


def _print(shell: str, whole: argparse.ArgumentParser) -> int:
    print(script(shell, whole))
    return 0


def script(shell: str, whole: argparse.ArgumentParser) -> str:
    """Return the script of a shell for a parser."""
    return _SCRIPTS[shell](list(_commands(whole)))


def _commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = (), text: str = ""
) -> Iterator[_Command]:
    yield _Command(words, text, parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help or "" for one in action._choices_actions}
            for name, below in action.choices.items():
                yield from _commands(below, (*words, name), helps.get(name, ""))


def _options(command: _Command) -> Iterator[argparse.Action]:
    for action in command.parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            yield action


def _below(command: _Command, commands: list[_Command]) -> list[_Command]:
    return [one for one in commands if one.words[:-1] == command.words and one.words]


_BASH = """\
_paddlempi() {{
  local at="" offered="" word now=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  for word in "${{COMP_WORDS[@]:1:$((COMP_CWORD-1))}}"; do
    case "$at $word" in
      {paths}) at="${{at:+$at }}$word" ;;
      "run "*.py|"run --") return ;;  # what follows is the script's
    esac
  done
  case "$at $before" in
{choices}
    *) case "$at" in
{words}
    esac ;;
  esac
  COMPREPLY=($(compgen -W "$offered" -- "$now"))
}}
complete -o default -F _paddlempi paddlempi"""


def _bash(commands: list[_Command]) -> str:
    paths, choices, words = [], [], []
    for one in commands:
        at = " ".join(one.words)
        if one.words:
            paths.append(f'"{" ".join(one.words[:-1])} {one.words[-1]}"')
        offered = [below.words[-1] for below in _below(one, commands)]
        offered += _positional_choices(one)
        for option in _options(one):
            offered += [name for name in option.option_strings if name.startswith("--")]
            if option.choices:
                names = "|".join(f'"{at} {name}"' for name in option.option_strings)
                choices.append(f'    {names}) offered="{_joined(option)}" ;;')
        words.append(f'      "{at}") offered="{" ".join(offered)}" ;;')
    return _BASH.format(paths="|".join(paths), choices="\n".join(choices), words="\n".join(words))


def _positional_choices(command: _Command) -> list[str]:
    """Return the choices of the words that are no options, without names of commands."""
    of_words = (a for a in command.parser._actions if not a.option_strings and a.choices)
    plain = (a for a in of_words if not isinstance(a, argparse._SubParsersAction))
    return [str(choice) for action in plain for choice in action.choices or ()]


def _joined(option: argparse.Action) -> str:
    return " ".join(map(str, option.choices or ()))


def _zsh(commands: list[_Command]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(commands)}"


def _fish(commands: list[_Command]) -> str:
    lines = []
    for one in commands:
        seen = [f"__fish_seen_subcommand_from {word}" for word in one.words]
        below = _below(one, commands)
        names = " ".join(command.words[-1] for command in below)
        if below:
            seen.append(f"not __fish_seen_subcommand_from {names}")
        here = f"complete -c paddlempi -n {_quoted('; and '.join(seen) or 'true')}"
        for command in below:
            lines.append(f"{here} -f -a {command.words[-1]} -d {_quoted(command.help)}")
        lines += [f"{here} -f -a {choice}" for choice in _positional_choices(one)]
        for option in _options(one):
            words = [here]
            for name in option.option_strings:
                words.append(f"-l {name[2:]}" if name.startswith("--") else _short(name))
            if option.choices:
                words.append(f"-x -a {_quoted(_joined(option))}")
            elif option.nargs != 0:
                words.append("-r")
            lines.append(" ".join([*words, "-d", _quoted(option.help or "")]))
    return "\n".join(lines)


def _short(name: str) -> str:
    """Return how fish is told of ``-m``, or of ``-np``."""
    return f"-s {name[1:]}" if len(name) == 2 else f"-o {name[1:]}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("%%", "%") + "'"


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
