"""`jaxsparse completion`: prints a script with which a shell completes commands, options and their values.

The script is made from the parser and calls nothing, since starting this program takes a second.
"""

import argparse
from collections.abc import Iterator

from jaxsparse_fmt.cli import tables

HELP = "print a script that completes commands in a shell"
ABOUT = "Prints a script for bash or zsh that completes commands, options and their values."
ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(args: argparse.Namespace) -> int:
    tables.write_out("\n".join([*([ZSH] if args.shell == "zsh" else []), *script(args.parser)]))
    return 0


def script(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The lines of the script."""
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    yield "_jaxsparse() {"
    yield "  local word=${COMP_WORDS[COMP_CWORD]} words="
    yield '  case "${COMP_WORDS[1]} ${COMP_WORDS[COMP_CWORD-1]}" in'
    for name, command in commands.choices.items():
        for action in command._actions:
            if action.choices:
                for option in action.option_strings or [name]:
                    yield f'    "{name} {option}") words="{" ".join(action.choices)}" ;;'
    yield "    *) case $COMP_CWORD,${COMP_WORDS[1]},$word in"
    yield f'      1,*) words="{" ".join(commands.choices)}" ;;'
    for name, command in commands.choices.items():
        options = (option for action in command._actions for option in action.option_strings)
        yield f'      *,{name},-*) words="{" ".join(options)}" ;;'
    yield "    esac ;;"
    yield "  esac"
    yield '  if [[ $words ]]; then COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "  else local IFS=$'\\n'; COMPREPLY=($(compgen -f -- \"$word\")); fi"
    yield "}"
    yield "complete -o filenames -F _jaxsparse jaxsparse"
