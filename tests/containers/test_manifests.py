"""The manifests for Kubernetes and compose: valid, and consistent with timerd, with each other and with the image."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

import kubernetes_validate
import pytest
import yaml

from support.real.images import copied, stages
from support.real.trees import ROOT, SETTINGS
from timerd.config.config import KNOBS, dashed
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE

MANIFESTS = ROOT / "systemd"
SIDECARS = ("spark-executor.yaml", "web-sidecar.yaml")
DAEMON_SETS = ("spark-daemonset.yaml", "web-daemonset.yaml")
NAMES = SIDECARS + DAEMON_SETS


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((MANIFESTS / name).read_text())
    return found


def pod_of(name: str) -> dict[str, Any]:
    """The specification of the manifest's pods."""
    found = manifest(name)
    spec: dict[str, Any] = found["spec"] if found["kind"] == "Pod" else found["spec"]["template"]["spec"]
    return spec


def daemon_of(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = (one for one in pod["initContainers"] + pod["containers"] if one["name"] == "timerd")
    return dict(found)


def flags_of(words: list[str]) -> dict[str, str]:
    """The flags of a command line of timerd, each of which exists."""
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert words[0] == "timerd" and set(flags) <= {f"--{dashed(knob)}" for knob in KNOBS}
    return flags


def runtime_dir_of(container: dict[str, Any]) -> str:
    (found,) = (one["value"] for one in container["env"] if one["name"] == RUNTIME_DIR_VARIABLE)
    return str(found)


@pytest.mark.parametrize("name", NAMES)
def test_the_manifest_is_valid_and_a_manifest_with_an_error_is_not(name: str) -> None:
    version = kubernetes_validate.latest_version()
    kubernetes_validate.validate(manifest(name), version, strict=True)
    slipped = manifest(name)
    slipped["spec"]["initContainer"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(slipped, version, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_arena_and_sockets_are_in_the_shared_volume(name: str) -> None:
    pod = pod_of(name)
    daemon = daemon_of(pod)
    flags = flags_of(daemon["command"])
    (mount,) = daemon["volumeMounts"]
    for flag in ("--runtime-dir", "--arena-file"):
        assert PurePosixPath(flags[flag]).parent == PurePosixPath(mount["mountPath"])
    assert runtime_dir_of(daemon) == flags["--runtime-dir"], "the daemon's probe looks there"
    (volume,) = pod["volumes"]
    assert volume["name"] == mount["name"]
    assert volume.get("emptyDir", {}).get("medium") == "Memory" or volume["hostPath"]["path"].startswith("/run/")


@pytest.mark.parametrize("name", SIDECARS)
def test_the_sidecar_serves_before_the_application_starts_and_the_application_finds_it(name: str) -> None:
    pod = pod_of(name)
    daemon, (application,) = daemon_of(pod), pod["containers"]
    assert daemon in pod["initContainers"] and daemon["restartPolicy"] == "Always" and "startupProbe" in daemon
    (shared,), (mount,) = application["volumeMounts"], daemon["volumeMounts"]
    assert shared == mount or shared == mount | {"readOnly": True}
    assert runtime_dir_of(application) == runtime_dir_of(daemon)
    assert "runAsUser" not in daemon["securityContext"], "both run as the pod's user: another user may not connect"


@pytest.mark.parametrize("name", NAMES)
def test_the_daemon_has_few_rights_bounded_memory_and_is_started_again_if_it_hangs(name: str) -> None:
    pod = pod_of(name)
    daemon = daemon_of(pod)
    rights = pod.get("securityContext", {}) | daemon["securityContext"]
    assert rights["runAsNonRoot"] and rights["runAsUser"] and rights["readOnlyRootFilesystem"]
    assert rights["capabilities"] == {"drop": ["ALL"]} and not rights["allowPrivilegeEscalation"]
    assert rights["seccompProfile"] == {"type": "RuntimeDefault"}
    assert daemon["resources"]["limits"]["memory"]
    assert daemon["livenessProbe"]["exec"]["command"] == ["timerctl", "ping"]


@pytest.mark.parametrize("name", DAEMON_SETS)
def test_the_directory_on_a_node_belongs_to_the_daemon_and_pods_get_its_path(name: str) -> None:
    pod = pod_of(name)
    daemon, (directory, *_) = daemon_of(pod), pod["initContainers"]
    user = str(daemon["securityContext"]["runAsUser"])
    assert directory["command"][directory["command"].index("-o") + 1] == user
    assert directory["command"][-1] == pod["volumes"][0]["hostPath"]["path"] == daemon["volumeMounts"][0]["mountPath"]
    says = [line for line in (MANIFESTS / name).read_text().splitlines() if line.startswith("#")]
    assert any("TIMERD_RUNTIME_DIR" in line and runtime_dir_of(daemon) in line for line in says)


def test_daemon_and_application_of_the_compose_file_share_the_volume_and_have_no_rights_beyond_that() -> None:
    compose = manifest("compose.yaml")
    daemon, web = compose["services"]["timerd"], compose["services"]["web"]
    flags = flags_of(daemon["command"])
    (mount,), (shared,) = daemon["volumes"], web["volumes"]
    volume, _, directory = mount.partition(":")
    assert compose["volumes"][volume]["driver_opts"]["type"] == "tmpfs", "an arena on a disk would be written back"
    assert {PurePosixPath(path).parent for path in flags.values()} == {PurePosixPath(directory)}
    assert shared == f"{mount}:ro"
    for service in (daemon, web):
        assert service["environment"] == {RUNTIME_DIR_VARIABLE: flags["--runtime-dir"]}
        assert service["cap_drop"] == ["ALL"] and service["read_only"] and service["mem_limit"]
        assert service["image"].endswith(f":{SETTINGS['project']['version']}"), "not `latest`"
        assert service["build"]["target"] in stages()
    assert web["depends_on"]["timerd"] == {"condition": "service_healthy"}


def test_the_image_runs_as_an_ordinary_user_and_checks_its_health() -> None:
    *_, last = stages().values()
    assert "HEALTHCHECK" in {word for word, _ in last}, "the default image is the daemon's"
    (user,) = [rest for word, rest in stages()["run"] if word == "USER"]
    assert not [rest for word, rest in last if word == "USER"]
    made = " ".join(rest for word, rest in stages()["run"] if word == "RUN")
    assert f"--uid {user}" in made
    assert f"uid={user}" in manifest("compose.yaml")["volumes"]["timerd"]["driver_opts"]["o"]
    assert daemon_of(pod_of("web-daemonset.yaml"))["securityContext"]["runAsUser"] == int(user)
    assert pod_of("web-sidecar.yaml")["securityContext"]["runAsUser"] == int(user)


def test_the_build_of_the_image_gets_each_folder_that_a_wheel_is_made_from() -> None:
    cmake = (ROOT / "timerd/CMakeLists.txt").read_text()
    folders = re.findall(r"^install\(DIRECTORY \$\{root\}/(\w+)/", cmake, re.MULTILINE)
    assert folders and set(folders) <= set(copied())
