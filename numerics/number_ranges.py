"""How many distinct numbers were seen, in memory that grows with their gaps and not with their count."""

from bisect import bisect_right
from dataclasses import dataclass, field


@dataclass
class NumberRanges:
    """Distinct numbers as ranges; those of one sequence are one range, however long it is."""

    _starts: list[int] = field(default_factory=list)
    _stops: list[int] = field(default_factory=list)
    _count: int = 0

    def __len__(self) -> int:
        return self._count

    @property
    def next(self) -> int:
        """The number after the largest; 0 if there is none."""
        return self._stops[-1] if self._stops else 0

    @property
    def ranges(self) -> list[range]:
        """The numbers, in order."""
        return [range(start, stop) for start, stop in zip(self._starts, self._stops, strict=True)]

    def add(self, number: int) -> None:
        """Note a number; one that is known already changes nothing."""
        after = bisect_right(self._starts, number)
        if after and number < self._stops[after - 1]:
            return
        self._count += 1
        grows = after > 0 and self._stops[after - 1] == number
        meets = after < len(self._starts) and self._starts[after] == number + 1
        if grows and meets:
            self._stops[after - 1] = self._stops.pop(after)
            self._starts.pop(after)
        elif grows:
            self._stops[after - 1] += 1
        elif meets:
            self._starts[after] = number
        else:
            self._starts.insert(after, number)
            self._stops.insert(after, number + 1)
