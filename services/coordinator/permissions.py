"""What each client, and the web page, may ask of this coordinator. Whoever is not named may ask for nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from parley.contracts.run.v1 import run_service_pb2
from parley.dashboard.access import Visitor, visitor
from parley.dashboard.views import Refused, RunAccess
from parley.services.coordinator.config import Permission, Permissions
from parley.services.wire.audit import ADMITTED
from parley.services.wire.authorisation import Caller, NotAuthorised, Policy

NEEDED_BY_CALL: Mapping[str, Permission] = {
    "CheckSpec": "start",
    "StartRun": "start",
    "ResumeRun": "start",
    "GetRun": "watch",
    "ListRuns": "watch",
    "WatchRun": "watch",
    "ListParties": "watch",
    "GetCoefficients": "watch",
    "TagRun": "start",
    "CancelRun": "cancel",
    "Predict": "predict",
    "PredictRows": "predict",
    "Deploy": "deploy",
    "RollBackDeployment": "deploy",
    "Undeploy": "deploy",
    "ListDeployments": "watch",
    "GetLedger": "ledger",
    "DeleteRun": "administer",
    "PruneRuns": "administer",
    "Align": "administer",
}
"""For each method of RunService what its caller must be permitted; one that is not listed is refused to everyone."""
NEEDED_BY_PAGE: Mapping[str, Permission] = {
    "runs": "watch",
    "run": "watch",
    "events": "watch",
    "watch": "watch",
    "parties": "watch",
    "deployments": "watch",
    "predict_rows": "predict",
    "coefficients": "watch",
    "metrics": "watch",
    "check": "start",
    "start": "start",
    "resume": "start",
    "tag": "start",
    "predict": "predict",
    "delete": "administer",
    "cancel": "cancel",
    "ledger": "ledger",
    "audit": "administer",
}
"""The same for what the web page asks (`RunAccess`)."""
NOTED_OF_PAGE = ("start", "resume", "tag", "cancel", "predict", "predict_rows", "delete", "ledger")
"""What the audit trail takes down of what the page asks: all that does more than look, and ledgers."""
Note = Callable[[str, str, str], None]
"""Takes down what was asked, about what, and the outcome."""
RUN_SERVICE = f"/{run_service_pb2.DESCRIPTOR.services_by_name['RunService'].full_name}/"


class NotPermitted(NotAuthorised):
    """The configuration does not let this client do this."""


@dataclass(frozen=True)
class ClientPolicy(Policy):
    """A table of roles, and behind it what each client by name is permitted."""

    clients: Mapping[str, Permissions] = field(default_factory=dict)

    def admit(self, method: str, caller: Caller) -> Caller:
        """Let the caller pass.

        Raises:
            NotAuthorised: if its role may not call the method.
            NotPermitted: if it is a client that lacks the permission; says which line would give it.
        """
        super().admit(method, caller)
        if method.startswith(RUN_SERVICE):
            needed, given = NEEDED_BY_CALL.get(method.removeprefix(RUN_SERVICE)), self.clients.get(caller.name, ())
            if needed is None:
                raise NotPermitted(f"{method} is served to no client: install the same version on both sides")
            if needed not in given:
                line = f"{caller.name}: [{', '.join((*given, needed))}]"
                raise NotPermitted(
                    f"client {caller.name} lacks the permission `{needed}`: write the line `{line}` under `clients` in "
                    "the coordinator's configuration, and start it again"
                )
        return caller


class PermittedPage:
    """`RunAccess` behind the permissions of whoever sends the request that is being answered."""

    def __init__(self, runs: RunAccess, note: Note) -> None:
        self._runs, self._note = runs, note

    @property
    def version(self) -> str:
        """The coordinator's version."""
        return self._runs.version

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of the runs, if the visitor may use it."""
        needed = NEEDED_BY_PAGE.get(name)
        if needed is None:
            raise AttributeError(name)
        asking = visitor.get()
        if needed not in asking.permissions:
            self._note(name, "", "NOT_PERMITTED")
            raise Refused(403, "NOT_PERMITTED", _missing(asking, needed))
        method = cast(Callable[..., Any], getattr(self._runs, name))
        if name not in NOTED_OF_PAGE:
            return method

        async def noted(*arguments: Any) -> Any:
            self._note(name, arguments[0], ADMITTED)
            try:
                return await method(*arguments)
            except Refused as refused:
                self._note(name, arguments[0], refused.reason)
                raise

        return noted


def _missing(asking: Visitor, needed: str) -> str:
    """Says who lacks what, and what would give it."""
    line = f"[{', '.join((*asking.permissions, needed))}]"
    where = {
        "web": "add it to `web.permissions` in the coordinator's configuration, and start it again",
        "token": "revoke it, and make one that has it (`parley token create`)",
        "user": f"write the line `{asking.name}: {line}` under `web.provider.users` in the coordinator's "
        "configuration, and start it again",
    }[asking.role]
    who = "the page" if asking.role == "web" else f"{asking.role} {asking.name}"
    return f"{who} lacks the permission `{needed}`: {where}"


def permitted(runs: RunAccess, note: Note = lambda *_: None) -> RunAccess:
    """What the page is given; `note` takes down what is done by it."""
    return cast(RunAccess, PermittedPage(runs, note))
