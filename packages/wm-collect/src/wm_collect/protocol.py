"""Named sets of defaults, and what a run changed of them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

# What every agent's protocols must hold: no changes.
PAPER = "paper"


@dataclasses.dataclass(frozen=True)
class Protocol:
    """A named set of defaults for one purpose.

    Attributes:
        summary: what it is for, one sentence.
        settings: the agent's settings that differ from its own defaults, which are the paper's.
        run: the options of `train` that differ from the usual.
    """

    summary: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    run: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def find_protocol(protocols: Mapping[str, Protocol], name: str) -> Protocol:
    """Return a protocol by its name.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in protocols:
        known = ", ".join(protocols)
        raise ValueError(f"the protocol must be one of {known}, got {name!r}.")
    return protocols[name]


def changes(values: Any, reference: Any, whose: str) -> list[str]:
    """Return what differs from a reference, as "name value (whose: reference value)".

    Args:
        values: a dataclass.
        reference: another of the same class.
        whose: whose values the reference's are, e.g. "paper".
    """
    changed = []
    for field in dataclasses.fields(reference):
        value, default = getattr(values, field.name), getattr(reference, field.name)
        if value != default:
            # A blank follows from the model size or the task, so there is no one value to state.
            stated = "" if default is None else f" ({whose}: {default})"
            changed.append(f"{field.name} {value}{stated}")
    return changed


def paper_departures(settings: Any) -> str:
    """Return what differs from the paper, in one line.

    Args:
        settings: the settings of a run, a dataclass whose defaults are the paper's.
    """
    changed = changes(settings, type(settings)(), PAPER)
    return ", ".join(changed) or "none: the paper's hyperparameters"


def departures(name: str, protocol: Protocol, settings: Any) -> dict[str, str]:
    """Return lines for a description: what differs from the paper, and from the protocol in use.

    Args:
        name: of the protocol.
        protocol: the protocol.
        settings: the settings of a run, a dataclass whose defaults are the paper's.
    """
    kind = type(settings)
    lines = {"departures": paper_departures(settings)}
    if name != PAPER:
        from_protocol = changes(settings, kind(**protocol.settings), name)
        lines[f"of these, not of {name}"] = ", ".join(from_protocol) or "none"
    return lines
