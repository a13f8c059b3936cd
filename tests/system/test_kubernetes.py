"""The manifests for Kubernetes: valid by its schemas, and consistent with timerd and with each other."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import kubernetes_validate
import pytest
import yaml

from support.real.trees import ROOT
from timerd.config.config import KNOBS, dashed
from timerd_shm.host.places import RUNTIME_DIR_VARIABLE

MANIFESTS = ROOT / "systemd"
NAMES = ("spark-executor.yaml", "timerd-daemonset.yaml")


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
    words = daemon["command"]
    flags = dict(zip(words[1::2], words[2::2], strict=True))
    assert words[0] == "timerd" and set(flags) <= {f"--{dashed(knob)}" for knob in KNOBS}
    (mount,) = daemon["volumeMounts"]
    for flag in ("--runtime-dir", "--arena-file"):
        assert PurePosixPath(flags[flag]).parent == PurePosixPath(mount["mountPath"])
    assert runtime_dir_of(daemon) == flags["--runtime-dir"], "the daemon's probe looks there"
    (volume,) = pod["volumes"]
    assert volume["name"] == mount["name"]
    assert volume.get("emptyDir", {}).get("medium") == "Memory" or volume["hostPath"]["path"].startswith("/run/")


def test_the_sidecar_serves_before_the_executor_starts_and_the_executor_finds_it() -> None:
    pod = pod_of("spark-executor.yaml")
    daemon, (executor,) = daemon_of(pod), pod["containers"]
    assert daemon in pod["initContainers"] and daemon["restartPolicy"] == "Always" and "startupProbe" in daemon
    assert executor["volumeMounts"] == daemon["volumeMounts"]
    assert runtime_dir_of(executor) == runtime_dir_of(daemon)
    assert "runAsUser" not in daemon["securityContext"], "both run as the pod's user: another user may not connect"


def test_the_directory_on_a_node_belongs_to_the_daemon_and_executors_get_its_path() -> None:
    pod = pod_of("timerd-daemonset.yaml")
    daemon, (directory, *_) = daemon_of(pod), pod["initContainers"]
    user = str(daemon["securityContext"]["runAsUser"])
    assert directory["command"][directory["command"].index("-o") + 1] == user
    assert directory["command"][-1] == pod["volumes"][0]["hostPath"]["path"] == daemon["volumeMounts"][0]["mountPath"]
    assert f"TIMERD_RUNTIME_DIR={runtime_dir_of(daemon)}\n" in (MANIFESTS / "timerd-daemonset.yaml").read_text()
