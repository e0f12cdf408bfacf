#!/bin/bash
# A Kubernetes cluster of two real nodes on this machine, on loopback, in about ten seconds once it is built.
# Prints the admin's kubeconfig. A cluster that runs already is kept. See docs/kubernetes.md.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/pki.sh"
need_root
need_packages etcd-server containerd runc containernetworking-plugins busybox-static openssl iproute2
"$KUBE_SCRIPTS/build.sh" >/dev/null
command -v kubectl >/dev/null || need_packages kubernetes-client
export KUBECONFIG=$KUBE_CLUSTER/kc/admin.conf
if pid_lives "$KUBE_CLUSTER/api.pid" && kubectl get --raw /readyz >/dev/null 2>&1; then
    echo "$KUBECONFIG"
    exit 0
fi
[ ! -d "$KUBE_CLUSTER" ] || "$KUBE_SCRIPTS/down.sh"
mkdir -p "$KUBE_CLUSTER/log"
chmod 700 "$KUBE_CLUSTER"
# The kubelet sets these on the machine; down.sh puts them back.
sysctl -n vm.overcommit_memory kernel.panic kernel.panic_on_oops >"$KUBE_CLUSTER/sysctls"
cluster_pki "$KUBE_CLUSTER"
"$KUBE_SCRIPTS/images.sh" "$KUBE_BIN" "$KUBE_CLUSTER/images.tar"

pki=$KUBE_CLUSTER/pki log=$KUBE_CLUSTER/log
etcd --data-dir "$KUBE_CLUSTER/etcd" --listen-client-urls http://127.0.0.1:23790 \
    --advertise-client-urls http://127.0.0.1:23790 --listen-peer-urls http://127.0.0.1:23800 --unsafe-no-fsync \
    >"$log/etcd.log" 2>&1 &
echo $! >"$KUBE_CLUSTER/etcd.pid"
"$KUBE_SCRIPTS/api.sh"
for _ in $(seq 300); do
    kubectl get --raw /readyz >/dev/null 2>&1 && break
    sleep 0.1
done
kubectl get --raw /readyz >/dev/null || die "the API server did not come up; see $log/api.log"
"$KUBE_BIN/kube-controller-manager" --kubeconfig="$KUBE_CLUSTER/kc/cm.conf" --leader-elect=false \
    --pvclaimbinder-sync-period=1s --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" \
    --node-eviction-rate=10 --use-service-account-credentials=true --bind-address=127.0.0.1 --secure-port=26257 \
    --port=0 --node-monitor-grace-period=12s --node-monitor-period=2s --pod-eviction-timeout=5s \
    --terminated-pod-gc-threshold=50 >"$log/cm.log" 2>&1 &
echo $! >"$KUBE_CLUSTER/cm.pid"
"$KUBE_BIN/kube-scheduler" --kubeconfig="$KUBE_CLUSTER/kc/sched.conf" --leader-elect=false --bind-address=127.0.0.1 \
    --secure-port=26259 --port=0 >"$log/sched.log" 2>&1 &
echo $! >"$KUBE_CLUSTER/sched.pid"
export KUBE_CLUSTER KUBE_BIN
"$KUBE_SCRIPTS/node.sh" 1
"$KUBE_SCRIPTS/node.sh" 2
kubectl create namespace jobs >/dev/null
for _ in $(seq 600); do
    # Both may fail while the cluster comes up.
    ready=$(kubectl get nodes --no-headers 2>/dev/null | awk '$2=="Ready"' | wc -l) || true
    if [ "$ready" -eq 2 ] && kubectl -n jobs get serviceaccount default >/dev/null 2>&1; then
        echo "$KUBECONFIG"
        exit 0
    fi
    sleep 0.1
done
die "the nodes did not become ready; see $log"
