"""The Helm chart: linted, rendered, and every manifest checked against Kubernetes' own schema."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from parley.services.coordinator.config import CoordinatorConfig
from parley.services.party.config import PartyConfig
from parley.services.wire.configuration import load_config
from tests.e2e.composition import ROOT, run

pytestmark = pytest.mark.e2e
CHART = ROOT / "deploy" / "helm" / "parley"
EXAMPLES = ROOT / "deploy" / "helm" / "examples"
HELM = os.environ.get("PARLEY_HELM") or shutil.which("helm")
KUBERNETES = "1.35"


@pytest.fixture(autouse=True)
def _helm():
    if HELM is None:
        pytest.skip("there is no helm command: install Helm, or name it with PARLEY_HELM")


def template(*arguments: str):
    return run(str(HELM), "template", "org", str(CHART), *arguments)


def rendered(example: str, *arguments: str) -> list[dict]:
    done = template("--values", str(EXAMPLES / f"{example}.yaml"), *arguments)
    assert done.returncode == 0, done.stderr.decode()
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def of_kind(manifests: list[dict], kind: str) -> list[dict]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


@pytest.mark.parametrize("example", ["party", "outbound-party", "active"])
def test_the_chart_has_nothing_to_lint(example):
    done = run(str(HELM), "lint", "--strict", str(CHART), "--values", str(EXAMPLES / f"{example}.yaml"))
    assert done.returncode == 0, done.stdout.decode()


@pytest.mark.parametrize("example", ["party", "outbound-party", "active"])
def test_every_manifest_is_one_that_kubernetes_knows(example):
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    manifests = rendered(example)
    for manifest in manifests:
        validator.validate(manifest, KUBERNETES, strict=True)
    misspelt = of_kind(manifests, "StatefulSet")[0]
    misspelt["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(validator.ValidationError):
        validator.validate(misspelt, KUBERNETES, strict=True)


def test_the_configuration_that_the_chart_writes_is_one_that_the_services_read(tmp_path):
    manifests = rendered("active")
    for kind, role in ((PartyConfig, "party"), (CoordinatorConfig, "coordinator")):
        file = tmp_path / f"{role}.yaml"
        found = [m["data"][file.name] for m in of_kind(manifests, "ConfigMap") if file.name in m["data"]]
        assert len(found) == 1
        file.write_text(found[0])
        config: Any = load_config(file, kind)
        assert (config.listen, config.state, config.identity) == ("0.0.0.0:7700", Path("/state"), Path("/certificates"))


def test_a_party_that_only_dials_out_has_no_service_no_port_and_lets_nobody_in(tmp_path):
    manifests = rendered("outbound-party")
    assert not of_kind(manifests, "Service")
    (workload,) = of_kind(manifests, "StatefulSet")
    assert "ports" not in workload["spec"]["template"]["spec"]["containers"][0]
    (policy,) = of_kind(manifests, "NetworkPolicy")
    assert policy["spec"]["ingress"] == []
    (tmp_path / "party.yaml").write_text(of_kind(manifests, "ConfigMap")[0]["data"]["party.yaml"])
    assert load_config(tmp_path / "party.yaml", PartyConfig).connect == "coordinator.example.org:7700"


def test_images_are_taken_by_digest_where_one_is_given():
    digest = f"sha256:{'0a' * 32}"
    given = ("--set", f"image.digests.party={digest}", "--set", "image.registry=registry.example.org/")
    (workload,) = of_kind(rendered("party", *given), "StatefulSet")
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"registry.example.org/parley/party@{digest}"
    wrong = template("--values", str(EXAMPLES / "party.yaml"), "--set", "image.digests.party=latest")
    assert wrong.returncode != 0
    assert "digests" in wrong.stderr.decode()


@pytest.mark.parametrize("example", ["party", "outbound-party", "active"])
def test_an_upgrade_replaces_pods_and_nothing_that_kubernetes_forbids_to_change(example, tmp_path):
    """`helm upgrade` to the next version: another chart, another digest, the same values."""
    chart = tmp_path / "parley"
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump(about | {"version": "99.0.0", "appVersion": "99.0.0"}))
    done = run(str(HELM), "template", "org", str(chart), "--values", str(EXAMPLES / f"{example}.yaml"))
    assert done.returncode == 0, done.stderr.decode()
    after = [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]
    before = rendered(example)
    assert names(after) == names(before), "state and its claims keep their names"
    pods = list(zip(of_kind(before, "StatefulSet"), of_kind(after, "StatefulSet"), strict=True))
    assert pods
    for old, new in pods:
        assert image_of(new) != image_of(old)
        changed = {field for field in new["spec"] if new["spec"][field] != old["spec"].get(field)}
        assert changed == {"template"}, "of a StatefulSet little else may change"
        assert new["spec"]["template"]["metadata"]["labels"].items() >= new["spec"]["selector"]["matchLabels"].items()


def names(manifests: list[dict]) -> list[tuple[str, str]]:
    return [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]


def image_of(stateful_set: dict) -> str:
    return stateful_set["spec"]["template"]["spec"]["containers"][0]["image"]


def test_no_pod_is_evicted_under_a_run_unless_the_values_say_so():
    for example, number in (("active", 2), ("outbound-party", 1)):
        manifests = rendered(example)
        budgets = of_kind(manifests, "PodDisruptionBudget")
        assert [budget["spec"]["maxUnavailable"] for budget in budgets] == [0] * number
        chosen = [budget["spec"]["selector"]["matchLabels"] for budget in budgets]
        for workload in of_kind(manifests, "StatefulSet"):
            labels = workload["spec"]["template"]["metadata"]["labels"]
            assert sum(selector.items() <= labels.items() for selector in chosen) == 1
    drained = of_kind(rendered("party", "--set", "podDisruptionBudget.maxUnavailable=1"), "PodDisruptionBudget")
    assert drained[0]["spec"]["maxUnavailable"] == 1


def test_an_existing_secret_is_mounted_as_files_and_makes_no_secret_of_the_chart():
    manifests = rendered("party", "--set", "party.fileSecret=bank-files")
    assert not of_kind(manifests, "Secret")
    pod = of_kind(manifests, "StatefulSet")[0]["spec"]["template"]["spec"]
    assert {"name": "secrets", "secret": {"secretName": "bank-files", "defaultMode": 0o440}} in pod["volumes"]
    mounts = {mount["mountPath"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["/secrets"]["readOnly"]


def test_every_pod_is_confined_probed_and_limited():
    for workload in of_kind(rendered("active"), "StatefulSet"):
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
        assert {"cpu", "memory"} <= container["resources"]["limits"].keys()
        writable = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert writable == {"state", "tmp"}


def test_without_peers_nobody_may_call_and_only_names_can_be_resolved():
    arguments = ("--set", "party.network.from=null", "--set", "party.network.to=null")
    (policy,) = of_kind(rendered("party", *arguments), "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["ingress"] == []
    assert [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]] == [53, 53]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["party.enabled=true"], "party.name is empty: set it to the name in the certificate"),
        (["party.enabled=true", "party.name=bank"], "name the secret with its certificate"),
        (
            ["party.enabled=true", "party.name=bank", "party.certificates.secret=s"],
            "party.config.policy.coordinators is empty",
        ),
        (["party.enable=true"], "enable"),
    ],
)
def test_a_value_that_is_missing_or_misspelt_is_named(settings, sentence):
    done = template(*(part for setting in settings for part in ("--set", setting)))
    assert done.returncode != 0
    assert sentence in done.stderr.decode()


def test_certificates_given_as_files_become_a_secret(tmp_path):
    files = []
    for name in ("key.pem", "certificate.pem", "ca.pem"):
        (tmp_path / name).write_text(f"content of {name}")
        escaped = name.replace(".", "\\.")
        files += ["--set-file", f"party.certificates.files.{escaped}={tmp_path / name}"]
    manifests = rendered("party", "--set", "party.certificates.secret=", *files)
    (secret,) = of_kind(manifests, "Secret")
    assert secret["data"].keys() == {"key.pem", "certificate.pem", "ca.pem"}
    (workload,) = of_kind(manifests, "StatefulSet")
    mounted = [v["secret"]["secretName"] for v in workload["spec"]["template"]["spec"]["volumes"] if "secret" in v]
    assert mounted == [secret["metadata"]["name"]]
