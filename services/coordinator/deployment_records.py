"""Which runs are deployed under which names, in the registry's database."""

from dataclasses import dataclass

from parley.services.coordinator.registry import Registry
from parley.services.coordinator.registry_tables import deployments as _deployments


class DeploymentUnknown(LookupError):
    """Nothing is deployed under this name."""


class NoEarlierVersion(LookupError):
    """There is no version to go back to."""


@dataclass(frozen=True)
class DeploymentRecord:
    """One version of a deployment."""

    name: str
    version: int
    run_id: str
    table_name: str
    """Empty for the table that the run was trained on."""
    current: bool
    deployed_by: str
    deployed: str


class DeploymentRecords:
    """Every version of every deployment; of each name one is current."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def all(self) -> list[DeploymentRecord]:
        """By name and version."""
        query = _deployments.select().order_by(_deployments.c.name, _deployments.c.version)
        with self._registry.reading() as connection:
            return [DeploymentRecord(**row) for row in connection.execute(query).mappings()]

    def versions(self, name: str) -> list[DeploymentRecord]:
        """Of one name, oldest first."""
        return [record for record in self.all() if record.name == name]

    def earlier(self, name: str) -> DeploymentRecord:
        """The version before the current one.

        Raises:
            DeploymentUnknown, NoEarlierVersion: if there is none.
        """
        found = self.versions(name)
        if not found:
            raise unknown(name)
        current = next(record.version for record in found if record.current)
        before = [record for record in found if record.version < current]
        if not before:
            raise NoEarlierVersion(f"{name} has no version before {current} to go back to")
        return before[-1]

    def next_version(self, name: str) -> int:
        """The number of the next deployment under a name."""
        return max((record.version for record in self.versions(name)), default=0) + 1

    def make_current(self, record: DeploymentRecord) -> None:
        """Write a version down if it is new, and let it be the one that answers."""
        mine = _deployments.c.name == record.name
        this = mine & (_deployments.c.version == record.version)
        with self._registry.writing() as connection:
            connection.execute(_deployments.update().where(mine).values(current=False))
            if connection.execute(_deployments.update().where(this).values(current=True)).rowcount == 0:
                connection.execute(_deployments.insert().values(**vars(record) | {"current": True}))

    def forget(self, name: str) -> None:
        """Forget all versions of a name."""
        with self._registry.writing() as connection:
            connection.execute(_deployments.delete().where(_deployments.c.name == name))


def unknown(name: str) -> DeploymentUnknown:
    """What is told of a name that nothing is deployed under."""
    return DeploymentUnknown(f"nothing is deployed as {name:.64}: `parley deployments list` shows what is")
