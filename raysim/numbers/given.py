"""Tensors that functions are given and must leave as they are: versions tell changes in place.

Torch has no read-only tensors. Clients of a worker share the groups that the server
sent, so that a change in place would reach others, and other ones with another number of workers.
Changes through `.data` or NumPy have no version; `raysim.testing` compares bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

from torch import Tensor

from raysim.errors import ChangedInputError
from raysim.numbers.tensors.torch_private import versions_of

PARTS = ("start", "broadcast", "state", "personal")
"""Parts of a client's view that have tensors which others may read."""


class Given:
    """Tensors that functions are given."""

    def __init__(self, parts: Mapping[str, Any]) -> None:
        """Note the versions of tensors.

        Args:
            parts: By a part's name for the error, tensors by name, or groups of them.
        """
        seen = [(tensor, part) for part, tree in parts.items() for tensor in _leaves(tree)]
        self._tensors, self._parts = [t for t, _ in seen], [part for _, part in seen]
        self._versions = versions_of(self._tensors)

    @classmethod
    def of_view(cls, parts: Mapping[str, Any]) -> Self:
        """Note the tensors in a client's view that rules, stages and attacks get, by `PARTS`."""
        return cls({f"view.{part}": parts[part] for part in PARTS})

    def changed(self) -> list[str]:
        """Return the parts with changed tensors, in order."""
        if (now := versions_of(self._tensors)) == self._versions:
            return []
        triples = zip(self._parts, now, self._versions, strict=True)
        return [*dict.fromkeys(part for part, new, old in triples if new != old)]

    def check_left(self, function: str, who: str = "") -> None:
        """Check that functions have changed no tensor in place.

        Args:
            function: The function, or several, for the error.
            who: Their component, as in settings.

        Raises:
            ChangedInputError: a tensor has changed; the message names its part.
        """
        if changed := self.changed():
            raise ChangedInputError(
                f"{function} changes {' and '.join(changed)} in place; change a copy,"
                " tensor.clone()",
                who,
            )


def _leaves(tree: Mapping[str, Any]) -> Iterator[Tensor]:
    for value in tree.values():
        if isinstance(value, Tensor):
            yield value
        else:
            yield from _leaves(value)
