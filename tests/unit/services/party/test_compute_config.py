"""Where a party's rows may be worked on."""

import pytest
from pydantic import ValidationError

from parley.services.party.config import ComputeConfig

KEYS = {"certificate": "node.crt", "key": "node.key", "authority": "ca.crt"}


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "localhost:6379", "[::1]:6379", "ray://127.0.0.1:10001"])
def test_a_cluster_of_this_machine_needs_no_keys(address):
    assert ComputeConfig(engine="ray", address=address).is_here


@pytest.mark.parametrize("address", ["10.0.0.7:6379", "ray://head.example.org:10001", "127.0.0.1.example.org:6379"])
@pytest.mark.parametrize("given", [{}, {"token": "token"}, {"tls": KEYS}])
def test_rows_go_to_no_other_machine_without_token_and_certificates(address, given):
    with pytest.raises(ValidationError, match="is another machine: give `token`"):
        ComputeConfig(engine="ray", address=address, **given)


def test_ray_gets_token_and_certificates_from_its_environment():
    compute = ComputeConfig(engine="ray", address="10.0.0.7:6379", tls=KEYS, token="token")  # noqa: S106 (a path)
    assert compute.environment == {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_IGNORE_UNHANDLED_ERRORS": "1",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": "token",
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": "node.crt",
        "RAY_TLS_SERVER_KEY": "node.key",
        "RAY_TLS_CA_CERT": "ca.crt",
    }


@pytest.mark.parametrize("address", ["auto", "local", "127.0.0.1", "http://127.0.0.1:8265", "ray://127.0.0.1"])
def test_an_address_names_host_and_port(address):
    with pytest.raises(ValidationError, match="address"):
        ComputeConfig(engine="ray", address=address)
