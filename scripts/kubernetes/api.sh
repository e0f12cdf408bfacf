#!/bin/bash
# Starts the API server of a cluster whose etcd runs; also after it was stopped by a test.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
pki=$KUBE_CLUSTER/pki
cat >"$KUBE_CLUSTER/audit.yaml" <<'YAML'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, namespaces: [jobs]}, {level: None}]
YAML
"$KUBE_BIN/kube-apiserver" --etcd-servers=http://127.0.0.1:23790 --bind-address=127.0.0.1 --secure-port=26443 \
    --endpoint-reconciler-type=none --service-cluster-ip-range=10.0.0.0/24 --client-ca-file="$pki/ca.crt" \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --service-account-issuer=https://kubernetes.default --service-account-key-file="$pki/sa.pub" \
    --service-account-signing-key-file="$pki/sa.key" --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction --allow-privileged=true --kubelet-preferred-address-types=Hostname \
    --kubelet-certificate-authority="$pki/ca.crt" --kubelet-client-certificate="$pki/kubeletclient.crt" \
    --kubelet-client-key="$pki/kubeletclient.key" --profiling=false --event-ttl=10m \
    --audit-policy-file="$KUBE_CLUSTER/audit.yaml" --audit-log-path="$KUBE_CLUSTER/log/audit.log" \
    >>"$KUBE_CLUSTER/log/api.log" 2>&1 &
echo $! >"$KUBE_CLUSTER/api.pid"
