"""deploy/helm as helm renders it: `make helm`."""

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support import helm
from support.charts import CHART, EXAMPLES, merge_values, read_yaml, variables

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not helm.DOWNLOAD.present(), reason="there is no helm: `make helm` builds it"),
]
TABLE = read_yaml(CHART / "services.yaml")
Manifest = Mapping[str, Any]
examples = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)


def run_helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm.PROGRAM, *arguments], capture_output=True, text=True, check=False)


@cache
def render(example: Path, *options: str) -> tuple[Manifest, ...]:
    done = run_helm("template", "pulse", str(CHART), "--namespace", "x", "--values", str(example), *options)
    assert done.returncode == 0, done.stderr
    return tuple(document for document in yaml.safe_load_all(done.stdout) if document)


def named(manifests: tuple[Manifest, ...], kind: str) -> dict[str, Manifest]:
    return {m["metadata"]["name"].removeprefix("pulse-"): m for m in manifests if m["kind"] == kind}


def pods(manifests: tuple[Manifest, ...]) -> dict[str, Manifest]:
    """The templates of pods, by the name of what makes them."""
    kinds = ("Job", "Deployment", "StatefulSet")
    return {name: m["spec"]["template"] for kind in kinds for name, m in named(manifests, kind).items()}


def containers(manifests: tuple[Manifest, ...]) -> Iterator[tuple[Manifest, Manifest]]:
    """Each container, those of initialisation too, with its pod's template."""
    for template in pods(manifests).values():
        for container in [*template["spec"]["containers"], *template["spec"].get("initContainers", ())]:
            yield template, container


@cache
def validators() -> dict[tuple[str, str], jsonschema.Draft4Validator]:
    """By version and kind: what a server takes, without fields that it would drop."""
    document = read_yaml(helm.SCHEMA)
    for definition in document["definitions"].values():
        if definition.get("format") == "int-or-string":
            definition["type"] = ["string", "integer"]
        if "properties" in definition:
            definition.setdefault("additionalProperties", False)
    kinds = {}
    for definition in document["definitions"].values():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            version = "/".join(filter(None, (kind["group"], kind["version"])))
            schema = definition | {"definitions": document["definitions"]}
            kinds[version, kind["kind"]] = jsonschema.Draft4Validator(schema)
    return kinds


def faults(manifest: Manifest) -> list[str]:
    validator = validators()[manifest["apiVersion"], manifest["kind"]]
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(manifest)]


@examples
def test_helm_finds_nothing_wrong(example: Path) -> None:
    done = run_helm("lint", "--strict", str(CHART), "--values", str(example))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("settings.PULSE_KAFKA__PASSWORD=x", "PULSE_KAFKA__PASSWORD"),
        ("settings.PULSE_POSTGRES__HOST=", "PULSE_POSTGRES__HOST"),
        ("services.api.replica=2", "replica"),
    ],
)
def test_helm_refuses_values_that_the_schema_refuses(option: str, message: str) -> None:
    done = run_helm("template", "pulse", str(CHART), "--values", str(EXAMPLES[1]), "--set-string", option)
    assert done.returncode
    assert message in done.stderr


@examples
def test_kubernetes_would_take_each_manifest(example: Path) -> None:
    manifests = render(example)
    assert {f"{m['kind']} {m['metadata']['name']}": faults(m) for m in manifests if faults(m)} == {}
    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(names) == len(set(names)) > 8


def test_a_manifest_that_kubernetes_would_refuse_is_noticed() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
    assert faults(service | {"spec": {"ports": [{"port": 80, "targetPort": "http"}]}}) == []
    assert faults(service | {"spec": {"ports": [{"port": "80"}]}})
    assert faults(service | {"spec": {"ports": [{"targetPort": 80}]}})
    assert faults(service | {"spec": {"port": 80}})


@examples
def test_containers_have_the_variables_of_the_table(example: Path) -> None:
    """So what test_chart.py compares with the code is what pods get."""
    values, manifests = merge_values(example), render(example)
    for pod, template in pods(manifests).items():
        assert [c["name"] for c in template["spec"]["containers"]] == TABLE["pods"][pod]
        for container in template["spec"]["containers"]:
            rendered = {
                entry["name"]: entry["value"]
                if "value" in entry
                else (
                    entry["valueFrom"]["secretKeyRef"]["name"],
                    entry["valueFrom"]["secretKeyRef"]["key"],
                )
                for entry in container["env"]
            }
            assert rendered == variables(TABLE, values, container["name"])
            assert len(rendered) == len(container["env"])
            assert container["command"] == TABLE["services"][container["name"]]["command"]
    ours = not values["settings"]["PULSE_SPARK__REMOTE"]
    assert set(pods(manifests)) == set(TABLE["pods"]) - (set() if ours else {"spark"})


@examples
def test_names_in_manifests_refer_to_existing_objects(example: Path) -> None:
    manifests = render(example)
    templates = list(pods(manifests).values())
    labels = [template["metadata"]["labels"] for template in templates]
    for manifest in manifests:
        spec = manifest["spec"]
        selector = spec.get("selector", spec.get("podSelector"))
        if selector is None:
            continue
        selected_labels = selector.get("matchLabels", selector)
        selected = [
            template
            for template, has in zip(templates, labels, strict=True)
            if selected_labels.items() <= has.items()
        ]
        assert len(selected) == 1, f"{manifest['kind']} {manifest['metadata']['name']}"
        if manifest["kind"] == "Service":
            ports = {
                port["name"]: port["containerPort"]
                for container in selected[0]["spec"]["containers"]
                for port in container.get("ports", ())
            }
            assert {port["targetPort"]: port["port"] for port in spec["ports"]} == ports
    for scaler in named(manifests, "HorizontalPodAutoscaler").values():
        target = scaler["spec"]["scaleTargetRef"]
        (scaled,) = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == tuple(target.values())[1:]]
        assert "replicas" not in scaled["spec"]
    claims = {
        claim["metadata"]["name"]
        for stateful in named(manifests, "StatefulSet").values()
        for claim in stateful["spec"]["volumeClaimTemplates"]
    }
    for template, container in containers(manifests):
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        mounts = [mount["name"] for mount in container["volumeMounts"]]
        assert set(mounts) <= volumes | claims
        paths = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert len(paths) == len(set(paths))
        ports = {port["name"] for port in container.get("ports", ())}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            how = container.get(probe, {})
            port = how.get("httpGet", how.get("tcpSocket", {})).get("port")
            assert port is None or port in ports


@examples
def test_each_container_is_confined_limited_and_watched(example: Path) -> None:
    manifests = render(example)
    for template, container in containers(manifests):
        spec, confined = template["spec"], container["securityContext"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert confined == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]
        if container["name"] in ("prepare", "dagster-home"):
            continue
        assert {"startupProbe", "livenessProbe"} <= container.keys()
        assert ("readinessProbe" in container) == ("ports" in container)
    assert named(manifests, "PodDisruptionBudget").keys() == {"api", "lake"}
    assert "Secret" not in {manifest["kind"] for manifest in manifests}


def test_network_policies_are_those_of_the_table() -> None:
    (example,) = [path for path in EXAMPLES if path.name.startswith("minimal")]
    policies = named(render(example), "NetworkPolicy")
    assert set(policies) == set(TABLE["connections"])
    values = merge_values(example)["networkPolicy"]
    for name, policy in policies.items():
        spec = policy["spec"]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == name
        opened = [{port["port"] for port in rule["ports"]} for rule in spec["egress"]]
        peers = [values[peer]["ports"] for peer in TABLE["connections"][name]]
        assert opened == [{53}, *map(set, peers)]
        entered = {
            port["port"]: rule.get("from") for rule in spec.get("ingress", ()) for port in rule["ports"]
        }
        listening = {
            number
            for service in TABLE["pods"][name]
            for number in TABLE["services"][service].get("ports", {}).values()
        }
        assert set(entered) == listening, "each port has its rule"
    (rule,) = policies["spark"]["spec"]["ingress"]
    callers = {peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in rule["from"]}
    assert callers == {name for name, targets in TABLE["connections"].items() if "spark" in targets}


def test_prepare_runs_before_all_else() -> None:
    hooks = {
        (m["kind"], int(m["metadata"]["annotations"]["helm.sh/hook-weight"]))
        for m in render(EXAMPLES[0])
        if m["metadata"].get("annotations", {}).get("helm.sh/hook") == "pre-install,pre-upgrade"
    }
    assert hooks == {("Job", 0), ("NetworkPolicy", -1)}


def test_releases_stand_beside_each_other() -> None:
    (example,) = [path for path in EXAMPLES if path.name.startswith("minimal")]
    done = run_helm("template", "other", str(CHART), "--values", str(example))
    assert "pulse-spark" not in done.stdout
    assert "sc://other-spark:15002/" in done.stdout


@examples
def test_the_notes_name_existing_objects(example: Path, tmp_path: Path) -> None:
    """helm shows notes only beside a cluster: here they are a template of a copy."""
    copy = Path(shutil.copytree(CHART, tmp_path / "pulse"))
    notes_file = copy / "templates" / "NOTES.txt"
    text = notes_file.read_text().replace("\n", "\n  ")
    notes_file.rename(copy / "templates" / "notes.yaml").write_text(f"kind: Notes\ntext: |\n  {text}\n")
    done = run_helm("template", "pulse", str(copy), "--values", str(example), "-s", "templates/notes.yaml")
    notes = yaml.safe_load(done.stdout)["text"]
    assert "pulse key operator create" in notes
    present = {f"{m['kind'].lower()}/{m['metadata']['name']}" for m in render(example)}
    for short, kind in (("deploy/", "deployment/"), ("svc/", "service/"), ("statefulset/", "statefulset/")):
        names = {kind + word.removeprefix(short) for word in notes.split() if word.startswith(short)}
        assert names
        assert names <= present
