"""What the Kubeflow training operator (v1) accepts as a PyTorchJob, as far as a manifest here uses it: its custom
resource is of types and limits, and its webhook adds that there is one Master and a container `pytorch` in each pod.
Pods themselves are Kubernetes' own (kubernetes-validate).
"""

from __future__ import annotations

from typing import Any

import jsonschema
import kubernetes_validate

_COUNT = {"type": "integer", "minimum": 0}
_PODS = {  # of one replica type; the template is checked as a pod
    "type": "object",
    "additionalProperties": False,
    "required": ["template"],
    "properties": {
        "replicas": _COUNT,
        "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
        "template": {"type": "object", "required": ["spec"]},
    },
}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "kubeflow.org/v1"},
        "kind": {"const": "PyTorchJob"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["pytorchReplicaSpecs"],
            "properties": {
                "nprocPerNode": {"type": "string"},
                "runPolicy": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "activeDeadlineSeconds": _COUNT,
                        "backoffLimit": _COUNT,
                        "cleanPodPolicy": {"enum": ["All", "Running", "None"]},
                        "suspend": {"type": "boolean"},
                        "ttlSecondsAfterFinished": _COUNT,
                    },
                },
                "pytorchReplicaSpecs": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["Master"],
                    "properties": {"Master": _PODS, "Worker": _PODS},
                },
            },
        },
    },
}


def check(manifest: dict[str, Any]) -> None:
    """Raises jsonschema's or kubernetes-validate's ValidationError, or AssertionError for what the webhook refuses."""
    jsonschema.validate(manifest, SCHEMA)
    replicas = manifest["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"].get("replicas", 1) == 1, "there is one Master"
    for kind, pods in replicas.items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": kind.lower()}, **pods["template"]}
        kubernetes_validate.validate(pod, "1.30", strict=True)
        assert "pytorch" in [container["name"] for container in pod["spec"]["containers"]], (
            f"{kind}: no container is named pytorch"
        )
