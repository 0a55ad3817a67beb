"""Pieces of the reports' pages, in Markdown."""

from collections.abc import Iterable, Mapping, Sequence


def criteria_list(criteria: Mapping[str, bool]) -> list[str]:
    """Return a list item per criterion that says whether it holds."""
    return [f"- {'yes' if held else 'no'}: {text}" for text, held in criteria.items()]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    cells = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(row) + " |" for row in cells]


def section(title: str, lines: Sequence[str]) -> list[str]:
    """Return the lines of a section; nothing if it has no content."""
    return [f"## {title}", "", *lines, ""] if lines else []


def reasons_list(reasons: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a list item per set of reasons, with the tasks they hold for; none for no reason."""
    tasks: dict[str, list[str]] = {}
    for task, clauses in reasons.items():
        if clauses:
            tasks.setdefault("; ".join(clauses), []).append(task)
    return [f"- {', '.join(names)}: {clauses}." for clauses, names in tasks.items()]


def distinct(texts: Iterable[str]) -> str:
    """Return the different ones of some texts, in their order."""
    return "; ".join(dict.fromkeys(texts)) or "not recorded"
