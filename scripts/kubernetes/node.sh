#!/bin/bash
# One node: a containerd and a kubelet of its own. usage: node.sh 1|2, with the cluster in $KUBE_CLUSTER and the programs
# in $KUBE_BIN. The second runs in a mount namespace of its own: two kubelets that share /var/log/pods remove each
# other's logs.
set -euo pipefail
n=$1
. "$(dirname "$0")/lib.sh"
node=$KUBE_CLUSTER/node$n
address=127.0.0.$((n + 1))
if [ "$n" -ne 1 ] && [ -z "${POLDER_IN_NAMESPACE:-}" ]; then
    mkdir -p "$node"/private/{pods,containers,kubelet} /var/log/pods /var/log/containers /var/lib/kubelet
    # shellcheck disable=SC2016 # the inner shell expands
    POLDER_IN_NAMESPACE=1 exec unshare -m --propagation private bash -c '
        mount --bind "$1/private/pods" /var/log/pods
        mount --bind "$1/private/containers" /var/log/containers
        mount --bind "$1/private/kubelet" /var/lib/kubelet
        exec "$2" "$3"' - "$node" "$0" "$n"
fi
mkdir -p "$node"/{cni,ctd/root,ctd/state,kubelet/root,kubelet/manifests,kubelet/plugins,kubelet/pki}
cat >"$node/cni/10-polder.conflist" <<CNI
{"cniVersion":"0.4.0","name":"t","plugins":[{"type":"bridge","bridge":"plkube$n","isGateway":false,"ipMasq":false,
"ipam":{"type":"host-local","dataDir":"$node/ipam","ranges":[[{"subnet":"10.244.$((n + 6)).0/24"}]]}}]}
CNI
cat >"$node/ctd/config.toml" <<TOML
version = 2
root = "$node/ctd/root"
state = "$node/ctd/state"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs","io.containerd.snapshotter.v1.devmapper","io.containerd.snapshotter.v1.zfs","io.containerd.snapshotter.v1.aufs","io.containerd.internal.v1.opt"]
[grpc]
  address = "$node/ctd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "local/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$node/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
TOML
cat >"$node/kubelet/config.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $address
port: 26250
healthzPort: 0
readOnlyPort: 0
tlsCertFile: $KUBE_CLUSTER/pki/node$n.crt
tlsPrivateKeyFile: $KUBE_CLUSTER/pki/node$n.key
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $KUBE_CLUSTER/pki/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
failSwapOn: false
makeIPTablesUtilChains: false
staticPodPath: $node/kubelet/manifests
volumePluginDir: $node/kubelet/plugins
oomScoreAdj: 0
resolvConf: ""
registerNode: true
nodeStatusUpdateFrequency: 3s
nodeLeaseDurationSeconds: 10
syncFrequency: 10s
maxPods: 60
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "50Mi"}
serializeImagePulls: false
YAML
if [ "$n" -ne 1 ]; then
    # Its pods below a control group of their own: a kubelet takes groups it does not know for leftovers.
    for hierarchy in /sys/fs/cgroup/*/; do mkdir -p "$hierarchy/plnode$n"; done
    for file in cpuset.cpus cpuset.mems; do
        [ ! -e "/sys/fs/cgroup/cpuset/$file" ] || cat "/sys/fs/cgroup/cpuset/$file" >"/sys/fs/cgroup/cpuset/plnode$n/$file"
    done
    echo "cgroupRoot: /plnode$n" >>"$node/kubelet/config.yaml"
fi
containerd -c "$node/ctd/config.toml" >"$KUBE_CLUSTER/log/containerd$n.log" 2>&1 &
echo $! >"$node/containerd.pid"
for _ in $(seq 100); do
    ctr -a "$node/ctd/containerd.sock" version >/dev/null 2>&1 && break
    sleep 0.1
done
ctr -a "$node/ctd/containerd.sock" -n k8s.io images import --snapshotter overlayfs "$KUBE_CLUSTER/images.tar" >/dev/null
exec "$KUBE_SCRIPTS/kubelet.sh" "$n"
