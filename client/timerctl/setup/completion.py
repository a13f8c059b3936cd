"""timerctl completion: prints a completion for bash, zsh or fish, made from the parser of the command line.

So a completion has each command and option of this version, with its choices. It is a plain script: pressing the tab
key starts no Python. shtab makes such scripts too, but none for fish.

All three scripts work alike. They go through the words before the cursor: a word that names a command leads into it,
and the value of an option is passed over. Then they offer the words that may come next there.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from timerctl.exits import Exit

FILES: Final = ("DIR", "DIRECTORY", "FILE", "PATH")  # names of values that are paths
EPILOG: Final = """\
examples:
  timerctl completion bash > ~/.local/share/bash-completion/completions/timerctl
  timerctl completion zsh > ~/.zfunc/_timerctl      # with fpath+=(~/.zfunc)
  timerctl completion fish > ~/.config/fish/completions/timerctl.fish
  source <(timerctl completion bash)                # for this shell alone

Make it again after an upgrade of timerd.
"""


class Word(NamedTuple):
    """A word that may come next: a command, or an option in one spelling."""

    text: str
    about: str


class Value(NamedTuple):
    """A value of an option, or of an argument by its place."""

    choices: tuple[str, ...]
    is_path: bool


class Place(NamedTuple):
    """A command, by its words: `calls cancel` is ("calls", "cancel"), and timerctl itself is ()."""

    words: tuple[str, ...]
    commands: tuple[Word, ...]
    options: tuple[Word, ...]
    values: dict[str, Value]  # by each spelling of an option that takes a value
    argument: Value  # the first one by its place; without choices if there is none

    @property
    def name(self) -> str:
        return " ".join(self.words)

    def offered(self) -> list[Word]:
        """The words that may stand here by their place, without files."""
        return [*self.commands, *(Word(choice, "") for choice in self.argument.choices)]

    def leads(self) -> Iterator[tuple[str, str]]:
        """(this command and a word, the command to which the word leads)."""
        for word in self.commands:
            yield f"{self.name}:{word.text}", " ".join((*self.words, word.text))


def add(commands: Any, top: argparse.ArgumentParser) -> None:
    """Declare the command. `top` is the parser of the whole command line."""
    command = commands.add_parser(
        "completion",
        help="print a completion for bash, zsh or fish",
        description="Print a script that completes timerctl's commands and options.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    command.set_defaults(run=run, top=top)


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    sys.stdout.write(SHELLS[arguments.shell](list(places(arguments.top))))
    return Exit.OK


def places(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[Place]:
    """The parser's command, and all commands below it."""
    options, commands = list[Word](), list[Word]()
    values, below = dict[str, Value](), dict[str, argparse.ArgumentParser]()
    argument = None
    # argparse has no public way to list the actions of a parser.
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            commands += [Word(each.dest, about(each)) for each in action._choices_actions]  # noqa: SLF001
            below |= action._name_parser_map  # noqa: SLF001
            continue
        value = Value(tuple(map(str, action.choices or ())), action.metavar in FILES)
        options += [Word(option, about(action)) for option in action.option_strings]
        if action.option_strings and action.nargs not in (0, "?"):  # a value that may be left out is not waited for
            values |= dict.fromkeys(action.option_strings, value)
        if not action.option_strings and argument is None:
            argument = value
    yield Place(words, tuple(commands), tuple(options), values, argument or Value((), False))
    for word, each in below.items():
        yield from places(each, (*words, word))


def about(action: argparse.Action) -> str:
    """The help of an action in one line."""
    return " ".join((action.help or "").replace("%%", "%").split())


# shells --------------------------------------------------------------------------------------------------------------


def patterns(texts: list[str]) -> str:
    """Words of a case in bash and zsh."""
    return "|".join(map(shlex.quote, texts))


def walk(found: list[Place], words: str) -> list[str]:
    """Lines for bash and zsh that set `place` to the command before the cursor. `words` are the words up to there.

    Bash makes three words of `--state=pending`.
    """
    takers = [f"{place.name}:{option}" for place in found for option in place.values]
    leads = [lead for place in found for lead in place.leads()]
    return [
        f"    for word in {words}; do",
        "        if [[ $word == = ]]; then skip=1; continue; fi",
        "        if [[ -n $skip ]]; then skip=; continue; fi",
        '        case "$place:$word" in',
        f"            {patterns(takers)}) skip=1 ;;",
        *(f"            {shlex.quote(lead)}) place={shlex.quote(name)} ;;" for lead, name in leads),
        "        esac",
        "    done",
    ]


def values_of(found: list[Place], files: str, choose: str) -> list[str]:
    """Cases for bash and zsh that offer the values of the option before the cursor. `files` and `choose` offer them."""
    offers: dict[str, list[str]] = {}
    for place in found:
        for option, value in place.values.items():
            offer = f"{choose} {shlex.join(value.choices)}" if value.choices else files if value.is_path else ":"
            offers.setdefault(offer, []).append(f"{place.name}:{option}")
    return [f"        {patterns(options)}) {offer}; return ;;" for offer, options in offers.items()]


def arrays_of(found: list[Place], spelt: Callable[[Word], str]) -> list[str]:
    """Cases for bash and zsh that set the arrays `offered` and `flags`, and `files`, for the command in `place`."""
    lines = []
    for place in found:
        offered, flags = (" ".join(map(spelt, words)) for words in (place.offered(), place.options))
        files = " files=1" if place.argument.is_path else ""
        lines.append(f"        {shlex.quote(place.name)}) offered=({offered}) flags=({flags}){files} ;;")
    return lines


def bash(found: list[Place]) -> str:
    """The script for bash. The option may stand two words back, before a `=`."""
    lines = [
        "# bash completion for timerctl, made by `timerctl completion bash`",
        "_timerctl() {",
        "    local word skip= place= files= cur=${COMP_WORDS[COMP_CWORD]} last=$COMP_CWORD",
        "    local -a offered flags",
        "    COMPREPLY=()",
        "    if [[ $cur == = ]]; then cur=",
        "    elif [[ ${COMP_WORDS[COMP_CWORD-1]} == = ]]; then last=$((COMP_CWORD-1)); fi",
        *walk(found, '"${COMP_WORDS[@]:1:COMP_CWORD-1}"'),
        '    case "$place:${COMP_WORDS[last-1]}" in',
        *values_of(found, '_timerctl_files "$cur"', '_timerctl_choose "$cur"'),
        "    esac",
        "    case $place in",
        *arrays_of(found, lambda word: shlex.quote(word.text)),
        "    esac",
        "    if [[ $cur == -* ]]; then",
        '        _timerctl_choose "$cur" "${flags[@]}"',
        "    elif [[ -n $files ]]; then",
        '        _timerctl_files "$cur"',
        "    else",
        '        _timerctl_choose "$cur" "${offered[@]}"',
        "    fi",
        "}",
        "_timerctl_choose() {",
        "    local cur=$1; shift",
        "    local IFS=$'\\n'",
        '    COMPREPLY=($(compgen -W "$(printf \'%s\\n\' "$@")" -- "$cur"))',
        "}",
        "_timerctl_files() {",
        "    local IFS=$'\\n'",
        "    compopt -o filenames 2>/dev/null",
        '    COMPREPLY=($(compgen -f -- "$1"))',
        "}",
        "complete -F _timerctl timerctl",
    ]
    return "\n".join(lines) + "\n"


def zsh(found: list[Place]) -> str:
    """The script for zsh: a file of fpath, or to be sourced."""
    lines = [
        "#compdef timerctl",
        "# zsh completion for timerctl, made by `timerctl completion zsh`",
        "_timerctl() {",
        "    local word skip= place= files=",
        "    local -a offered flags",
        *walk(found, '"${(@)words[2,CURRENT-1]}"'),
        '    case "$place:${words[CURRENT-1]}" in',
        *values_of(found, "_files", "compadd --"),
        "    esac",
        "    case $place in",
        *arrays_of(found, described),
        "    esac",
        "    if [[ ${words[CURRENT]} == -* ]]; then _describe -o timerctl flags",
        "    elif [[ -n $files ]]; then _files",
        "    else (( $#offered )) && _describe timerctl offered; fi",
        "}",
        'if [[ ${funcstack[1]} == _timerctl ]]; then _timerctl "$@"; else compdef _timerctl timerctl; fi',
    ]
    return "\n".join(lines) + "\n"


def described(word: Word) -> str:
    """A word with its description, for zsh's _describe."""
    text = word.text.replace(":", "\\:")
    return shlex.quote(f"{text}:{word.about}" if word.about else text)


def fish(found: list[Place]) -> str:
    """The script for fish. Fish knows by itself which option is before the cursor."""
    takers = [quoted(f"{place.name}:{option}") for place in found for option in place.values]
    lines = [
        "# fish completion for timerctl, made by `timerctl completion fish`",
        "function __timerctl_at",
        "    set -l place ''",
        "    set -l skip ''",
        "    for word in (commandline -opc)[2..-1]",
        '        if test -n "$skip"',
        "            set skip ''",
        "            continue",
        "        end",
        '        switch "$place:$word"',
        f"            case {' '.join(takers)}",
        "                set skip 1",
    ]
    for place in found:
        for lead, name in place.leads():
            lines += [f"            case {quoted(lead)}", f"                set place {quoted(name)}"]
    lines += ["        end", "    end", '    test "$place" = "$argv[1]"', "end", "complete -c timerctl -f"]
    for place in found:
        here = f"complete -c timerctl -n {quoted(f'__timerctl_at {quoted(place.name)}')}"
        lines += [f"{here} -a {quoted(word.text)} -d {quoted(word.about)}" for word in place.commands]
        if place.argument.choices:
            lines.append(f"{here} -a {quoted(' '.join(place.argument.choices))}")
        if place.argument.is_path:
            lines.append(f"{here} -F")
        for option in place.options:
            spelt = f"-l {option.text[2:]}" if option.text.startswith("--") else f"-s {option.text[1:]}"
            value = place.values.get(option.text)
            takes = "" if value is None else " -r -F" if value.is_path else " -x"
            takes += f" -a {quoted(' '.join(value.choices))}" if value is not None and value.choices else ""
            lines.append(f"{here} {spelt}{takes} -d {quoted(option.about)}")
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A word for fish, in which a backslash and a quote are the only special characters between single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SHELLS: Final[dict[str, Callable[[list[Place]], str]]] = {"bash": bash, "zsh": zsh, "fish": fish}
