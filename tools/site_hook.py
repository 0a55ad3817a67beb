"""What the documentation site does to its pages: links that leave `docs/` become plain text.

On the repository's own pages such links lead to files (README, CONTRIBUTING); the site holds only
what is in `docs/`, and knows no address of the repository.
"""

import re

_LINK_OUT_OF_DOCS = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Keep the words of a link that leaves `docs/`, and drop where it leads."""
    return _LINK_OUT_OF_DOCS.sub(r"\1", markdown)
