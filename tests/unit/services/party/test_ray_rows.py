"""Where a party's rows may be worked on, as far as no cluster is needed; tests/integration/test_ray.py has one."""

import sys
from functools import partial

import numpy as np
import pytest
from pydantic import ValidationError

from parley.services.party.config import ComputeConfig
from parley.services.party.ray_rows import RayEngine, connect
from parley.services.wire.configuration import ConfigInvalid
from parley.tables.rows import ShardedRows

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


@pytest.mark.parametrize(
    "address",
    ["auto", "local", "127.0.0.1", "http://127.0.0.1:8265", "ray://127.0.0.1", "127.0.0.1:0", "127.0.0.1:70000"],
)
def test_an_address_names_host_and_port(address):
    with pytest.raises(ValidationError, match="address"):
        ComputeConfig(engine="ray", address=address)


def test_a_party_without_ray_says_what_to_install(monkeypatch):
    compute = ComputeConfig(engine="ray", address="127.0.0.1:6379")
    for name, value in compute.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigInvalid, match=r"pip install 'parley-fl\[ray\]'"):
        connect(compute, 1)


def test_a_small_batch_has_the_bits_of_the_shards_without_a_cluster():
    values = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    batch = np.random.default_rng(1).permutation(500)[:99]
    engine = RayEngine(ComputeConfig(engine="ray", address="127.0.0.1:6379", shards=7, minimum_rows=100), 1)
    here = ShardedRows(values, "float32", shards=7)
    sums = partial(np.sum, axis=0)
    assert engine.rows(values, "float32").fold(sums, batch).tobytes() == here.fold(sums, batch).tobytes()
