"""From an environment id to the library that has it."""

import difflib
from types import ModuleType

from wm_collect.backends import brax, custom, gymnax, playground

# Searched in this order; a test checks that no id is in two of them.
_BACKENDS: dict[str, ModuleType] = {"gymnax": gymnax, "playground": playground, "brax": brax}
_EXTRAS = {"playground": "playground", "brax": "brax"}


def resolve(env_id: str) -> tuple[ModuleType, str]:
    """Return the backend module of an id, and the id without its prefix.

    Args:
        env_id: "Pendulum-v1", or with the library's name "gymnax/Pendulum-v1".

    Returns:
        The backend (its `load` builds the environment) and the library's own id.

    Raises:
        ValueError: no library has the id; the message lists close matches.
    """
    prefix, slash, name = env_id.partition("/")
    if slash and prefix in _BACKENDS:
        if _BACKENDS[prefix].has_id(name):
            return _BACKENDS[prefix], name
    else:
        for backend in _BACKENDS.values():
            if backend.has_id(env_id):
                return backend, env_id
    raise ValueError(_unknown(env_id, name if slash and prefix in _BACKENDS else env_id))


def known_ids() -> dict[str, tuple[str, ...]]:
    """Return the ids of every backend, by the backend's name, installed or not.

    Returns:
        "gymnax", "playground", "brax" and "custom" (the registered ones), each with its ids.
    """
    ids = {name: tuple(backend.TERMINATES) for name, backend in _BACKENDS.items()}
    return {**ids, "custom": custom.registered_envs()}


def _unknown(env_id: str, name: str) -> str:
    owners = {known: backend for backend, ids in known_ids().items() for known in ids}
    folded = {known.lower(): known for known in owners}
    close = difflib.get_close_matches(name.lower(), folded, n=5, cutoff=0.55)
    matches = []
    for match in close:
        known = folded[match]
        backend = owners[known]
        extra = _EXTRAS.get(backend)
        needs = f', needs pip install "wm-collect[{extra}]"' if extra else ""
        matches.append(f"{known!r} ({backend}{needs})")
    hint = f"Close matches: {'; '.join(matches)}." if matches else "No known id is close to it."
    return (
        f"Unknown environment id {env_id!r}. {hint} wm_collect.known_ids() lists all ids, and "
        f"wm_collect.register_env(name, builder) adds one of your own; so does the id "
        f'"module:attribute", which is imported.'
    )
