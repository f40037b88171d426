"""Who may do what: every method and every page path has its permission, and a new client has none."""

import inspect
from typing import Any

import pytest

from parley.contracts.run.v1 import run_service_pb2
from parley.dashboard.access import NOBODY, Visitor, visitor
from parley.dashboard.views import Refused, RunAccess
from parley.services.coordinator.__main__ import POLICY
from parley.services.coordinator.config import ALL_PERMISSIONS
from parley.services.coordinator.permissions import (
    NEEDED_BY_CALL,
    NEEDED_BY_PAGE,
    RUN_SERVICE,
    ClientPolicy,
    NotPermitted,
    permitted,
)
from parley.services.wire.authorisation import Caller, NotAuthorised

METHODS = [method.name for method in run_service_pb2.DESCRIPTOR.services_by_name["RunService"].methods]


def test_every_method_and_every_page_path_has_its_permission():
    assert NEEDED_BY_CALL.keys() == set(METHODS)
    asked = {name for name, found in vars(RunAccess).items() if inspect.isfunction(found) and not name.startswith("_")}
    assert NEEDED_BY_PAGE.keys() == asked
    assert {*NEEDED_BY_CALL.values(), *NEEDED_BY_PAGE.values()} == set(ALL_PERMISSIONS)


@pytest.mark.parametrize("method", METHODS)
def test_a_client_may_do_what_its_line_says_and_nothing_else(method):
    needed = NEEDED_BY_CALL[method]
    others = tuple(each for each in ALL_PERMISSIONS if each != needed)
    policy = ClientPolicy(POLICY.methods, {"ann": (needed,), "bob": others})
    policy.admit(RUN_SERVICE + method, Caller("client", "ann"))
    for name, line in (("bob", f"bob: [{', '.join((*others, needed))}]"), ("eve", f"eve: [{needed}]")):
        with pytest.raises(NotPermitted) as refusal:
            policy.admit(RUN_SERVICE + method, Caller("client", name))
        assert f"`{line}`" in str(refusal.value)


def test_a_party_of_a_permitted_clients_name_is_still_no_client():
    policy = ClientPolicy(POLICY.methods, {"ann": ALL_PERMISSIONS})
    with pytest.raises(NotAuthorised):
        policy.admit(RUN_SERVICE + "StartRun", Caller("party", "ann"))


def test_the_page_does_what_its_visitor_may():
    class Runs:
        version = "1"

        def runs(self):
            return ["run"]

        def start(self):
            raise AssertionError("never asked")

    page: Any = permitted(Runs())
    for role, name, remedy in (
        ("web", "page", r"web\.permissions"),
        ("token", "ann", "parley token create"),
        ("user", "ann@example.org", r"`ann@example\.org: \[watch, start\]` under `web\.provider\.users`"),
    ):
        visitor.set(Visitor(role, name, ("watch",)))
        assert page.runs() == ["run"]
        with pytest.raises(Refused, match=remedy) as refusal:
            page.start()
        assert (refusal.value.status, refusal.value.reason) == (403, "NOT_PERMITTED")
    with pytest.raises(AttributeError):
        page.something_else()


def test_nobody_in_particular_may_do_nothing():
    visitor.set(NOBODY)
    for name in NEEDED_BY_PAGE:
        with pytest.raises(Refused):
            getattr(permitted(object()), name)
