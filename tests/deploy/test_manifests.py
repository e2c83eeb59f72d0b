"""Dockerfile, Kubernetes manifest and systemd unit use existing settings with valid values."""

import re

import pytest
import yaml

from serving.core.budget import MEMORY_DIVISOR
from serving.settings import Settings
from tests.deploy.files import ADAPTER_RULE, DEPLOY, ROOT

DEFAULTS = {name: field.get_default() for name, field in Settings.model_fields.items() if not field.default_factory}


def kubernetes(kind):
    """Return the object of a kind in the manifest."""
    (found,) = (item for item in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if item["kind"] == kind)
    return found


@pytest.fixture(scope="module")
def pod():
    """Pod of the deployment."""
    return kubernetes("Deployment")["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", ["Dockerfile", "bertline.service", "kubernetes.yaml"])
def test_settings_exist(name):
    """Every variable is a setting of the server, with a valid value."""
    text = (DEPLOY / name).read_text()
    values = dict(re.findall(r"\bBERTLINE_([A-Z_]+)(?:=|, value: \"?)([^\s\"}]+)", text))

    assert values
    assert Settings(**{key.lower(): value for key, value in values.items()}).host == "0.0.0.0"


def test_ports(pod):
    """Ports are the server's defaults everywhere."""
    ports = [DEFAULTS["port"], DEFAULTS["metrics_port"]]
    (container,) = pod["containers"]

    assert [port["containerPort"] for port in container["ports"]] == ports
    assert {container[f"{probe}Probe"]["grpc"]["port"] for probe in ("startup", "readiness", "liveness")} == {ports[0]}
    assert f"EXPOSE {ports[0]} {ports[1]}" in (DEPLOY / "Dockerfile").read_text()
    assert f'"127.0.0.1:{ports[1]}"' in (DEPLOY / "prometheus.yml").read_text()


def test_no_variables_of_services(pod):
    """Kubernetes does not set BERTLINE_PORT to the address of the manifest's Service."""
    assert pod["enableServiceLinks"] is False


def test_time_to_stop(pod):
    """Stopping waits until the server has drained, and the liveness probe until it could have recovered."""
    (container,) = pod["containers"]
    grace_s = next(float(item["value"]) for item in container["env"] if item["name"] == "BERTLINE_GRACE_S")
    slept_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    unit = (DEPLOY / "bertline.service").read_text()
    liveness = container["livenessProbe"]

    assert pod["terminationGracePeriodSeconds"] > grace_s + slept_s
    assert int(re.search(r"TimeoutStopSec=(\d+)", unit)[1]) > DEFAULTS["grace_s"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > DEFAULTS["max_run_s"] + 5


def test_autoscaler():
    """The autoscaler alone sets the replicas of the Deployment, by the adapter's metric, more than may be disrupted."""
    deployment, scaler = kubernetes("Deployment"), kubernetes("HorizontalPodAutoscaler")["spec"]
    target = {"apiVersion": deployment["apiVersion"], "kind": "Deployment", "name": deployment["metadata"]["name"]}
    (metric,) = scaler["metrics"]

    assert scaler["scaleTargetRef"] == target
    assert "replicas" not in deployment["spec"]
    assert metric["pods"]["metric"]["name"] == ADAPTER_RULE["name"]["as"]
    assert scaler["minReplicas"] > kubernetes("PodDisruptionBudget")["spec"]["minAvailable"]


def test_labels_of_pods():
    """Prometheus gives the series the labels that the adapter finds pods by."""
    added = re.findall(r"target_label: (\w+)", (DEPLOY / "prometheus.yml").read_text())

    assert ADAPTER_RULE["resources"]["overrides"].keys() <= {*added}


def test_memory(pod):
    """Memory of an idle server, of messages and of attackers stays within the limit; so do requests of default size."""
    (container,) = pod["containers"]
    variables = {item["name"]: item["value"] for item in container["env"]}
    buffer = int(variables["BERTLINE_BUFFER_BYTES"])
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Mi")) * 2**20

    assert (170 + 128) * 2**20 + buffer < 0.75 * limit
    assert buffer == limit // MEMORY_DIVISOR
    assert "BERTLINE_MAX_REQUEST_BYTES" not in variables


def test_image():
    """Files copied into the image exist and are not ignored."""
    copied = re.findall(r"^COPY ((?!--from).*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    allowed = re.findall(r"^!(\S+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    names = " ".join(copied).split()

    assert sorted(names) == sorted(allowed)
    assert all((ROOT / name).exists() for name in names)
