"""Puts into pages what is made from the code while they are built: `<!-- made: NAME -->` stands where it is to be.

Pages that a list of contents names and that are not there are passed over.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
PLACE: Final = re.compile(r"^<!-- made: ([\w ]+) -->$", re.MULTILINE)
TOCTREE: Final = re.compile(r"^```\{toctree\}\n.*?^```$", re.DOTALL | re.MULTILINE)
RULE_LETTERS: Final = "PTLOGDRSE"
"""In the order of the chapters of reference/rules.md."""
PROOF: Final = re.compile(rf"def (test_((?:[{RULE_LETTERS}]\d+_)+)\w+)")
PROOFS_SHOWN: Final = 6
VERBATIM: Final = "\b"
"""In help texts: the lines below it are not wrapped."""
CHAPTERS: Final[Mapping[str, str]] = {
    "P": "producers-at-a-partition",
    "T": "the-transaction-coordinator",
    "L": "readers",
    "O": "offsets-and-groups",
    "G": "offsets-and-groups",
    "D": "the-log",
    "R": "several-replicas",
    "S": "what-a-client-may-do",
    "E": "end-to-end",
}
"""Where reference/rules.md tells of a rule, by its letter."""


def commands() -> str:
    """Return the chapter of each command, from what its --help says."""
    from typer.main import get_command

    from semel.cli.main import app

    root = get_command(app)
    context: Any = root.make_context("semel", [], resilient_parsing=True)
    parts = []
    for name in root.list_commands(context):  # type: ignore[attr-defined]
        command = root.get_command(context, name)  # type: ignore[attr-defined]
        parts.append(f"## semel {name}\n\n{_plain(command.help)}\n")
        if not hasattr(command, "list_commands"):
            parts.append(_command(command, context, name))
            continue
        inner = command.make_context(name, [], parent=context, resilient_parsing=True)
        for below in command.list_commands(inner):
            subcommand = command.get_command(inner, below)
            parts.append(f"### semel {name} {below}\n\n{_plain(subcommand.help)}\n")
            parts.append(_command(subcommand, inner, f"{name} {below}"))
    return "\n".join(parts)


def _command(command: Any, parent: Any, name: str) -> str:
    context = command.make_context(name.split()[-1], [], parent=parent, resilient_parsing=True)
    pieces = command.collect_usage_pieces(context)
    lines = [f"```text\nsemel {' '.join([name, *pieces])}\n```\n"]
    records = [record for param in command.params if (record := param.get_help_record(context)) and not param.hidden]
    if records:
        lines.append("| Argument or option | Meaning |\n|---|---|")
        lines += [f"| `{_cell(option)}` | {_cell(_plain(text))} |" for option, text in records]
        lines.append("")
    if command.epilog:
        lines.append(_epilog(command.epilog))
    return "\n".join(lines)


def _epilog(text: str) -> str:
    """Examples as something to copy, the rest as it is."""
    said, _, examples = re.sub(r"Examples?:", "\0", text, count=1).partition("\0")
    lines = [line.strip() for line in examples.replace(VERBATIM, "").splitlines() if line.strip()]
    shown = "```console\n" + "\n".join(f"$ {line}" for line in lines) + "\n```\n" if lines else ""
    return f"{_plain(said)}\n\n{shown}"


def _plain(text: str | None) -> str:
    """Help as Markdown: what follows the mark of lines that are not wrapped is a block, the rest is text."""
    parts = re.split(rf"^ *{VERBATIM}\n((?:.+\n?)+)", (text or "").strip(), flags=re.MULTILINE)
    said = [f"```text\n{part.strip()}\n```\n" if at % 2 else part.replace("<", "&lt;") for at, part in enumerate(parts)]
    return "".join(said).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def services() -> str:
    """Return the gRPC services with the comments of their definitions, and the messages as they are written."""
    parts = []
    for path in sorted((ROOT / "proto" / "semel" / "v1").glob("*.proto")):
        text = path.read_text()
        title = "\n".join(line.removeprefix("//").strip() for line in text.split("\nsyntax", 1)[0].splitlines())
        parts.append(f"## {path.name}\n\n{title}\n")
        for name, body in re.findall(r"^service (\w+) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
            parts.append(f"### semel.v1.{name}\n\n| Call | Request | Answer | What it does |\n|---|---|---|---|")
            parts += [*_calls(body), ""]
        messages = re.findall(r"(?:^//[^\n]*\n)*^(?:message|enum) \w+ \{.*?(?:^\}|\})$", text, re.DOTALL | re.MULTILINE)
        if messages:
            parts.append("```protobuf\n" + "\n\n".join(messages) + "\n```\n")
    return "\n".join(parts)


def _calls(body: str) -> Iterator[str]:
    call = re.compile(r"((?: *//.*\n)*) *rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\)")
    for comment, name, many, request, streamed, answer in call.findall(body):
        said = " ".join(line.strip().removeprefix("//").strip() for line in comment.splitlines())
        yield f"| `{name}` | {many}`{request}` | {streamed}`{answer}` | {_cell(said)} |"


def transaction_states() -> str:
    from semel.txn_coordinator.state import transition_diagram

    return f"```mermaid\n{transition_diagram()}```"


def group_states() -> str:
    from semel.group_coordinator.classic.state import state_diagram

    return f"```mermaid\n{state_diagram()}\n```"


def producer_states() -> str:
    """Return the states of a transactional producer in the client library, but for its ends: all states lead there."""
    from semel.sdk.producer.transaction_manager import LEGAL_MOVES

    ends = {state for state, afters in LEGAL_MOVES.items() if not afters}
    assert all(afters >= ends for state, afters in LEGAL_MOVES.items() if state not in ends)
    moves = [
        f"    {state_name(before)} --> {state_name(after)}"
        for before, afters in LEGAL_MOVES.items()
        for after in sorted(afters - ends, key=list(LEGAL_MOVES).index)
    ]
    first = state_name(next(iter(LEGAL_MOVES)))
    return "```mermaid\n" + "\n".join(["stateDiagram-v2", f"    [*] --> {first}", *moves]) + "\n```"


def state_name(state: Any) -> str:
    """Return a state of the client library as diagrams show it."""
    return str(state.value).title().replace(" ", "")


def proofs() -> Mapping[str, list[tuple[str, str]]]:
    """Return the tests by the rules that their names carry: each a file below tests/ and the test's name."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in sorted((ROOT / "tests").glob("**/test_*.py")):
        for name, rules in PROOF.findall(path.read_text()):
            for rule in rules.split("_")[:-1]:
                found[rule].append((str(path.relative_to(ROOT / "tests")), name))
    return found


def table_of_proofs() -> str:
    lines = ["| Rule | Tests | Some of them |", "|---|---|---|"]
    by_rule = proofs()
    for rule in sorted(by_rule, key=lambda name: (RULE_LETTERS.index(name[0]), int(name[1:]))):
        tests = by_rule[rule]
        shown = (f"`{path}`: {name.removeprefix('test_').replace('_', ' ')}" for path, name in tests[:PROOFS_SHOWN])
        lines.append(f"| {rule} | {len(tests)} | {'<br>'.join(shown)} |")
    return "\n".join(lines)


MADE: Final[Mapping[str, Callable[[], str]]] = {
    "commands": commands,
    "services": services,
    "states of a transaction": transaction_states,
    "states of a group": group_states,
    "states of a producer": producer_states,
    "proofs": table_of_proofs,
}


def filled(text: str) -> str:
    """Return a page with what is made for it. Raises KeyError for a name that nothing makes."""
    return PLACE.sub(lambda place: MADE[place[1]](), text)


def with_linked_proofs(text: str, rules_page: str) -> str:
    """Return a page in which the name of a test, as code, is a link to its rules, and what it says in words."""

    def linked(name: re.Match[str]) -> str:
        rules = name[1].split("_")[:-1]
        said = name[0].strip("`").removeprefix("test_" + name[1]).replace("_", " ")
        return ", ".join(f"[{rule}]({rules_page}#{CHAPTERS[rule[0]]})" for rule in rules) + f" {said}<br>"

    return re.sub(rf"`test_((?:[{RULE_LETTERS}]\d+_)+)\w+`", linked, text)


def without_absent_pages(text: str, folder: Path) -> str:
    """Return a page whose lists of contents have the pages alone that there are."""

    def kept(toctree: re.Match[str]) -> str:
        lines = toctree[0].splitlines()
        return "\n".join(line for line in lines if not re.fullmatch(r"[\w/-]+", line) or _is_page(folder / line))

    return TOCTREE.sub(kept, text)


def _is_page(path: Path) -> bool:
    return path.with_name(path.name + ".md").is_file()


def _read(app: Any, name: str, source: list[str]) -> None:
    text = without_absent_pages(filled(source[0]), (Path(app.srcdir) / name).parent)
    source[0] = with_linked_proofs(text, "reference/rules.md") if name == "guarantee" else text


def _outdated(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Pages that are made of more than their own text are read each time."""
    texts = {name: Path(env.doc2path(name)).read_text() for name in env.found_docs}
    return [name for name, text in texts.items() if PLACE.search(text) or TOCTREE.search(text)]


def setup(app: Any) -> dict[str, Any]:
    app.connect("source-read", _read)
    app.connect("env-get-outdated", _outdated)
    return {"parallel_read_safe": True}
