"""The reports' pages, in Markdown, and their pieces."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def write_page(
    path: Path,
    *,
    title: str,
    criteria: Mapping[str, bool],
    how: str,
    picture: str,
    sections: Mapping[str, Sequence[str]],
) -> None:
    """Write a page: the criteria first, then how they were judged, a picture, and the details.

    Args:
        path: the page; its folder exists.
        title: with the verdict.
        criteria: whether each criterion holds, by its text.
        how: a paragraph that explains them.
        picture: in Markdown.
        sections: the lines of each section, by its title; one without lines is left out.
    """
    lines = [f"# {title}", "", *criteria_list(criteria), "", how, "", picture, ""]
    for heading, content in sections.items():
        if content:
            lines += [f"## {heading}", "", *content, ""]
    path.write_text("\n".join(lines), encoding="utf-8")


def criteria_list(criteria: Mapping[str, bool]) -> list[str]:
    """Return a list item per criterion that says whether it holds."""
    return [f"- {'yes' if held else 'no'}: {text}" for text, held in criteria.items()]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    cells = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(row) + " |" for row in cells]


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
