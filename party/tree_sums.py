"""One party's way up an aggregation tree: what the children sent, its own summand, and on to the parent."""

from collections.abc import Awaitable, Callable

from parley.privacy.release import Release, TreeGate, TreeName, TreeSum

TREES: tuple[TreeName, TreeName] = ("values", "masks")


async def climb(
    gate: TreeGate,
    number: int,
    tree: TreeName,
    part: Callable[[int], Awaitable[TreeSum]],
    send: Callable[[int, Release[TreeSum]], Awaitable[None]],
) -> Release[TreeSum] | None:
    """Add this party's summand to its children's and pass the sum to its parent; at the root the sum stays."""
    received = [(child, await part(child)) for child in gate.children(number, tree)]
    release = gate.forward(number, tree, received)
    parent = gate.parent(tree)
    if parent is None:
        return release
    await send(parent, release)
    return None
