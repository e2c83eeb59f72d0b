"""Dockerfile, Kubernetes manifest and systemd unit use existing settings with valid values."""

import re
import shutil
import subprocess

import pytest
import yaml

from serving.core.request_memory import MEMORY_DIVISOR
from serving.settings import Settings, read_settings, unknown_variables
from tests.deploy.files import ADAPTER_RULE, DEPLOY, ROOT, page

DEFAULTS = {name: field.get_default() for name, field in Settings.model_fields.items() if not field.default_factory}


def kubernetes(kind):
    """Return the object of a kind in the manifest."""
    (found,) = (item for item in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()) if item["kind"] == kind)
    return found


@pytest.fixture(scope="module")
def pod():
    """Pod of the deployment."""
    return kubernetes("Deployment")["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def environment(pod):
    """Variables of the pod."""
    return {item["name"]: item["value"] for item in pod["containers"][0]["env"]}


@pytest.mark.parametrize("name", ["Dockerfile", "bertline.service", "kubernetes.yaml"])
def test_settings_exist(name, environment, monkeypatch):
    """Every variable is a setting of the server, with a valid value."""
    found = dict(re.findall(r"\b(BERTLINE_[A-Z_]+)=(\S+)", (DEPLOY / name).read_text())) or environment
    for key, value in found.items():
        monkeypatch.setenv(key, value)

    assert read_settings([]).host == "0.0.0.0"
    assert unknown_variables() == []


def test_ports(pod, environment):
    """Ports are the server's defaults everywhere, and the HTTP port is that of the guides."""
    grpc, metrics = DEFAULTS["port"], DEFAULTS["metrics_port"]
    http = int(environment["BERTLINE_HTTP_PORT"])
    numbers = {"grpc": grpc, "http": http, "metrics": metrics}
    (container,) = pod["containers"]
    image, proxy = ((DEPLOY / name).read_text() for name in ("Dockerfile", "nginx.conf"))

    assert {port["name"]: port["containerPort"] for port in container["ports"]} == numbers
    assert {port["name"]: port["port"] for port in kubernetes("Service")["spec"]["ports"]} == numbers
    assert {container[f"{probe}Probe"]["grpc"]["port"] for probe in ("startup", "readiness", "liveness")} == {grpc}
    assert re.findall(r"server 127.0.0.1:(\d+);", proxy) == [f"{grpc}", f"{http}"]
    assert f"EXPOSE {grpc} {http} {metrics}\n" in image
    assert f"BERTLINE_HTTP_PORT={http} " in image
    assert f'"127.0.0.1:{metrics}"' in (DEPLOY / "prometheus.yml").read_text()
    assert f"--http-port {http}\n" in page("guides/http.md")
    assert f"http://127.0.0.1:{http}/" in (ROOT / "README.md").read_text()


def test_commands_of_the_image():
    """Dockerfile and guide build and run the image alike."""
    (command,) = re.findall(r"^docker run (.*) bertline:", page("guides/deploy.md"), re.MULTILINE)

    assert f"# docker run {command} bertline\n" in (DEPLOY / "Dockerfile").read_text()


def test_names_of_the_service(environment, monkeypatch):
    """The HTTP port answers to the names of the Service."""
    monkeypatch.setenv("BERTLINE_HTTP_HOSTS", environment["BERTLINE_HTTP_HOSTS"])
    name = kubernetes("Service")["metadata"]["name"]
    parts = [name, "default", "svc", "cluster.local"]

    assert read_settings([]).http_hosts == tuple(".".join(parts[:count]) for count in range(1, 5))


def test_network(pod, environment):
    """Metrics are for another namespace than calls, also on the HTTP port, and the policy leaves out no port."""
    policy = kubernetes("NetworkPolicy")["spec"]
    ports = [[port["port"] for port in rule["ports"]] for rule in policy["ingress"]]

    assert policy["podSelector"] == kubernetes("Deployment")["spec"]["selector"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert ports == [["grpc", "http"], ["metrics"]]
    assert [name for rule in ports for name in rule] == [port["name"] for port in pod["containers"][0]["ports"]]
    assert "BERTLINE_METRICS_HOST" in environment


def test_no_variables_of_services(pod):
    """Kubernetes does not set BERTLINE_PORT to the address of the manifest's Service."""
    assert pod["enableServiceLinks"] is False


def test_time_to_stop(pod, environment):
    """Stopping waits until the server has drained, and the liveness probe until it could have recovered."""
    (container,) = pod["containers"]
    grace_s = float(environment["BERTLINE_GRACE_S"])
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


def test_memory(pod, environment):
    """Memory of an idle server, of messages and of attackers stays within the limit; so do requests of default size."""
    (container,) = pod["containers"]
    buffer = int(environment["BERTLINE_BUFFER_BYTES"])
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Mi")) * 2**20

    assert (170 + 128) * 2**20 + buffer < 0.75 * limit
    assert buffer == limit // MEMORY_DIVISOR
    assert "BERTLINE_MAX_REQUEST_BYTES" not in environment


def test_memory_of_the_unit():
    """The unit's limit allows the same, with the default for messages."""
    limit = int(re.search(r"^MemoryMax=(\d+)G$", (DEPLOY / "bertline.service").read_text(), re.MULTILINE)[1]) * 2**30

    assert (170 + 128) * 2**20 + limit // MEMORY_DIVISOR < 0.75 * limit


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_exposure_of_the_unit():
    """Systemd knows every directive, and rates the exposure at 2 of 10 at most."""
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", DEPLOY / "bertline.service"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_image():
    """Files copied into the image exist and are not ignored."""
    copied = re.findall(r"^COPY ((?!--from).*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    allowed = re.findall(r"^!(\S+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    names = " ".join(copied).split()

    assert sorted(names) == sorted(allowed)
    assert all((ROOT / name).exists() for name in names)
