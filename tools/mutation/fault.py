"""A mistake that somebody could make in the formula code, as a replacement of text in one file."""

import dataclasses
import hashlib


@dataclasses.dataclass(frozen=True)
class Fault:
    """One mistake.

    Attributes:
        name: unique among the faults of its agent; words joined by underscores.
        file: the source file, relative to the root of the workspace.
        before: text that occurs exactly once in the file.
        after: what replaces it; the file still runs, with other results.
        why: what is wrong then, in a few words.
        tests: test files, or tests in the form `file::test`, that are tried before the parity
            suite: those near the fault, and unit tests of what the recordings cannot hold.
    """

    name: str
    file: str
    before: str
    after: str
    why: str
    tests: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Twelve digits that change with the replacement, so that verdicts can be told stale."""
        text = "\0".join((self.file, self.before, self.after))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def changed(self, text: str) -> str:
        """Return the file's text with the mistake in it.

        Raises:
            ValueError: `before` does not occur exactly once.
        """
        found = text.count(self.before)
        if found != 1:
            raise ValueError(
                f"{self.name}: the text to be replaced occurs {found} times in {self.file}, it "
                "must occur once; write down the text that stands there now."
            )
        return text.replace(self.before, self.after)
