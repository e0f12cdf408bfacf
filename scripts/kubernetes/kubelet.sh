#!/bin/bash
# Starts the kubelet of a node that is set up. usage: kubelet.sh 1|2 (the second inside its mount namespace)
set -euo pipefail
n=$1
. "$(dirname "$0")/lib.sh"
node=$KUBE_CLUSTER/node$n
# Without it a credential provider tries a cloud's metadata address.
export AWS_EC2_METADATA_DISABLED=true
"$KUBE_BIN/kubelet" --kubeconfig="$KUBE_CLUSTER/kc/node$n.conf" --config="$node/kubelet/config.yaml" \
    --root-dir="$node/kubelet/root" --cert-dir="$node/kubelet/pki" --container-runtime=remote \
    --container-runtime-endpoint="unix://$node/ctd/containerd.sock" --hostname-override="127.0.0.$((n + 1))" \
    --seccomp-profile-root="$node/kubelet/seccomp" --v=2 >>"$KUBE_CLUSTER/log/kubelet$n.log" 2>&1 &
echo $! >"$node/kubelet.pid"
