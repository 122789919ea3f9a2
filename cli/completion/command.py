"""`semel completion`: a script for a shell, which calls the same command for what a word can become."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer
from typer.main import get_command

from semel.cli.common import DEFAULT_BOOTSTRAP, command_app, examples, fails_well
from semel.cli.completion.candidates import DIRECTORIES, FILES, Candidate, candidates
from semel.cli.completion.node_names import names_of

app = command_app()


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command(
    epilog=examples(
        "source <(semel completion bash)",
        "semel completion bash > ~/.local/share/bash-completion/completions/semel",
        'semel completion zsh > "${fpath[1]}/_semel"',
        "semel completion fish > ~/.config/fish/completions/semel.fish",
    )
)
@fails_well
def completion(
    shell: Annotated[Shell, typer.Argument(help="Your shell.")],
    words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Print a script that completes commands, options, topics and groups in your shell.

    Topics, groups and transactional ids are asked from the node that --bootstrap or SEMEL_BOOTSTRAP names, within two
    seconds; if it does not answer, they are left out. To install it, load the script in your shell's start file, or
    write it where the shell looks for completions (the second example needs the package bash-completion).
    """
    if not words:
        print(_SCRIPTS[shell], end="")
        return
    if shell is Shell.BASH:
        words = joined_as_typed(words)
    for found in possible(words[1:] or [""]):
        word = found.word
        if shell is Shell.BASH and word not in (FILES, DIRECTORIES):
            word = word[_replaced_by_bash(words[-1]) :]
            print(word)
        else:
            print(f"{word}\t{found.help}" if found.help else word)


def possible(words: Sequence[str]) -> list[Candidate]:
    """Return what the last word can become, in this command line."""
    from semel.cli.main import app as root

    return candidates(get_command(root), words, names_of, os.environ.get("SEMEL_BOOTSTRAP") or DEFAULT_BOOTSTRAP)


def joined_as_typed(words: Sequence[str]) -> list[str]:
    """Put together what bash takes apart at = and : (COMP_WORDBREAKS).

    >>> joined_as_typed(["semel", "--bootstrap", "=", "h", ":", "1", "orders", ":"])
    ['semel', '--bootstrap=h:1', 'orders:']
    """
    joined: list[str] = []
    joins = False
    for at, word in enumerate(words):
        is_break = word in ("=", ":", "::")
        if joined and (is_break or (joins and (word or at == len(words) - 1))):
            joined[-1] += word
        else:
            joined.append(word)
        joins = is_break
    return joined


def _replaced_by_bash(current: str) -> int:
    """Return where the part begins that bash replaces: behind the last = or :."""
    return max(current.rfind("="), current.rfind(":")) + 1


_BASH = """\
# Completion of semel for bash: source <(semel completion bash)
_semel_completion() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case "$line" in
            "") ;;
            FILES) compopt -o default ;;
            DIRECTORIES) compopt -o dirnames ;;
            *)
                COMPREPLY+=("$line")
                [[ "$line" == *[=:] ]] && compopt -o nospace
                ;;
        esac
    done < <("${COMP_WORDS[0]}" completion bash -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null </dev/null)
    return 0
}
complete -F _semel_completion semel
"""

_ZSH = """\
#compdef semel
# Completion of semel for zsh: source <(semel completion zsh)
_semel() {
    local line word
    local -a described
    for line in "${(@f)$("${words[1]}" completion zsh -- "${(@Q)words[1,CURRENT]}" 2>/dev/null </dev/null)}"; do
        case "$line" in
            "") ;;
            FILES) _files ;;
            DIRECTORIES) _files -/ ;;
            *)
                word="${line%%$'\\t'*}"
                if [[ "$line" == *$'\\t'* ]]; then
                    described+=("${word//:/\\\\:}:${line#*$'\\t'}")
                else
                    described+=("${word//:/\\\\:}")
                fi
                ;;
        esac
    done
    if (( ${#described} )); then
        _describe 'semel' described
    fi
}
if [[ "${funcstack[1]}" == _semel ]]; then
    _semel "$@"
else
    (( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit; }
    compdef _semel semel
fi
"""

_FISH = """\
# Completion of semel for fish: semel completion fish | source
function __semel_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in ($words[1] completion fish -- $words "$current" 2>/dev/null </dev/null)
        switch $line
            case FILES
                __fish_complete_path "$current"
            case DIRECTORIES
                __fish_complete_directories "$current"
            case '*'
                echo $line
        end
    end
end
complete -c semel -f -a '(__semel_complete)'
"""

_SCRIPTS = {
    shell: script.replace("FILES", FILES).replace("DIRECTORIES", DIRECTORIES)
    for shell, script in {Shell.BASH: _BASH, Shell.ZSH: _ZSH, Shell.FISH: _FISH}.items()
}
