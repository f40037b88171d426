"""Where a party's metrics are served, and to whom."""

import ssl

import httpx
import pytest

from parley.services.wire import metrics
from parley.services.wire.certificates import create_authority, issue


def test_loopback_serves_plain_http(tmp_path):
    port = metrics.listen("127.0.0.1:0", tmp_path)
    assert "parley_sessions" in httpx.get(f"http://127.0.0.1:{port}/metrics").text


def test_any_other_address_asks_for_a_certificate_of_the_federation(tmp_path):
    create_authority(tmp_path / "authority", "federation")
    for name, role in (("bank", "party"), ("monitor", "client")):
        issue(tmp_path / "authority", name, role, ["127.0.0.1"], out=tmp_path / name)
    port = metrics.listen("0.0.0.0:0", tmp_path / "bank")
    trust = ssl.create_default_context(cafile=str(tmp_path / "monitor" / "ca.pem"))
    with pytest.raises(httpx.TransportError):
        httpx.get(f"https://127.0.0.1:{port}/metrics", verify=trust)
    trust.load_cert_chain(tmp_path / "monitor" / "certificate.pem", tmp_path / "monitor" / "key.pem")
    assert "parley_sessions" in httpx.get(f"https://127.0.0.1:{port}/metrics", verify=trust).text


def test_an_address_that_cannot_be_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(metrics.MetricsAddressInvalid, match="host:port"):
        metrics.listen("9464", tmp_path)
