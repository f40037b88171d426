"""Scenarios in which a party is not what it should be: certificates, another version, a wrong clock."""

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from parley.client import RequestRefused
from parley.local import ProcessEnded
from parley.services.wire.certificates import create_authority, issue
from tests.faults.stage import Stage

SHIM = Path(__file__).with_name("skewed_clock.c")


def bad_certificates(stage: Stage) -> None:
    """Expired, not yet valid (a skewed clock) or another authority's: the party does not start, or is not reached."""
    federation = stage.federation
    folder, saved = federation.identity("shop"), federation.directory / "saved-identity"
    ours = federation.directory / "certificates" / "authority"
    shutil.copytree(folder, saved, dirs_exist_ok=True)
    federation.kill("shop")
    now = datetime.now(UTC)
    try:
        elsewhere = federation.directory / f"elsewhere-{stage.chance.getrandbits(40)}" / "authority"
        create_authority(elsewhere, "elsewhere", now=now - timedelta(days=9))
        for authority, moment in ((elsewhere, now - timedelta(days=3)), (ours, now + timedelta(days=2))):
            shutil.rmtree(folder)
            issue(authority, "shop", "party", ["localhost", "127.0.0.1"], days=1, out=folder, now=moment)
            try:
                federation.restart("shop")
                raise AssertionError(f"a certificate of {moment} for one day was taken")
            except ProcessEnded as ended:
                if "certificate.pem" not in str(ended):
                    raise
        shutil.rmtree(folder)
        issue(elsewhere, "shop", "party", ["localhost", "127.0.0.1"], out=folder)
        federation.restart("shop")
        try:
            stage.start_once()
            raise AssertionError("a party of another authority was trusted")
        except RequestRefused as refused:
            if refused.reason != "PARTY_UNREACHABLE":
                raise
        federation.kill("shop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(saved, folder)
        federation.restart("shop")
    stage.check_end(stage.start())


def other_version(stage: Stage) -> None:
    """A party of another version is refused by name before anything starts; of the same version it is taken again."""
    federation = stage.federation
    federation.kill("shop")
    federation.modules = {"shop": "tests.faults.other_version"}
    try:
        federation.restart("shop")
        known = len(stage.client.runs())
        try:
            stage.start()
            raise AssertionError("a party of another version took part")
        except RequestRefused as refused:
            if refused.reason != "VERSION_MISMATCH":
                raise
        if len(stage.client.runs()) != known:
            raise AssertionError("the refused run is registered")
    finally:
        federation.kill("shop")
        federation.modules = {}
        federation.restart("shop")
    stage.check_end(stage.start())


def skewed_clock(stage: Stage) -> None:
    """A clock that is off, but within the certificate, changes no bit; years off it is named with the certificate."""
    federation = stage.federation
    library = federation.directory / "skewed_clock.so"
    compiler = shutil.which("cc")
    if compiler is None:
        raise AssertionError("a clock that is wrong needs a C compiler (cc)")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SHIM], check=True)
    federation.kill("shop")
    try:
        for minutes in (-2, 60):
            federation.wrappers = _shifted(library, 60 * minutes)
            federation.restart("shop")
            stage.check_end(stage.start())
            federation.kill("shop")
        for years in (-30, 30):
            federation.wrappers = _shifted(library, 365 * 86400 * years)
            try:
                federation.restart("shop")
                raise AssertionError(f"a party whose clock is {years} years off was started")
            except ProcessEnded as ended:
                if "certificate.pem" not in str(ended):
                    raise
    finally:
        federation.kill("shop")
        federation.wrappers = {}
        federation.restart("shop")
    stage.check_end(stage.start())


def _shifted(library: Path, seconds: int) -> dict[str, list[str]]:
    return {"shop": ["env", f"LD_PRELOAD={library}", f"SKEW_SECONDS={seconds}"]}
