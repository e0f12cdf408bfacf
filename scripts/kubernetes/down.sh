#!/bin/bash
# Ends what up.sh started, by pid file, and takes back what it left on the machine.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
need_root
[ -d "$KUBE_CLUSTER" ] || exit 0
export KUBECONFIG=$KUBE_CLUSTER/kc/admin.conf
if pid_lives "$KUBE_CLUSTER/api.pid"; then
    timeout 20 kubectl delete pods --all-namespaces --all --force --grace-period=0 >/dev/null 2>&1
    sleep 1
fi
# stop FILE: ends the process of a pid file, and waits until it has.
stop() {
    pid_lives "$1" || return 0
    kill "$(cat "$1")" 2>/dev/null
    for _ in $(seq 50); do
        pid_lives "$1" || return 0
        sleep 0.1
    done
    kill -KILL "$(cat "$1")" 2>/dev/null
}
for part in node2/kubelet node1/kubelet sched cm api etcd; do stop "$KUBE_CLUSTER/$part.pid"; done
for node in "$KUBE_CLUSTER"/node?; do
    [ -S "$node/ctd/containerd.sock" ] || continue
    on_node() { timeout 20 ctr -a "$node/ctd/containerd.sock" -n k8s.io "$@" 2>/dev/null; }
    for task in $(on_node tasks ls -q); do on_node tasks kill -s SIGKILL "$task"; done
    sleep 0.5
    for task in $(on_node tasks ls -q); do on_node tasks rm -f "$task"; done
    for container in $(on_node containers ls -q); do on_node containers rm "$container"; done
    stop "$node/containerd.pid"
done >/dev/null
awk -v below="$KUBE_CLUSTER/" 'index($2, below) == 1 {print $2}' /proc/mounts | tac | while read -r mount; do
    umount -l "$mount"
done
# Network namespaces of pods are named in containerd's state, which is this cluster's alone.
if [ -d "$KUBE_CLUSTER/log" ]; then
    grep -hoE '/(var/)?run/netns/cni-[0-9a-f-]+' "$KUBE_CLUSTER"/log/containerd?.log 2>/dev/null | sort -u |
        while read -r netns; do
            [ -e "$netns" ] || continue
            umount -l "$netns" 2>/dev/null
            rm -f "$netns"
        done
fi
for bridge in plkube1 plkube2; do ip link del "$bridge" 2>/dev/null; done
for hierarchy in /sys/fs/cgroup/*/; do
    for group in kubepods plnode2; do
        [ ! -d "$hierarchy$group" ] || find "$hierarchy$group" -depth -type d -exec rmdir {} \; 2>/dev/null
    done
done
if [ -s "$KUBE_CLUSTER/sysctls" ]; then
    { read -r overcommit && read -r panic && read -r oops; } <"$KUBE_CLUSTER/sysctls"
    sysctl -qw "vm.overcommit_memory=$overcommit" "kernel.panic=$panic" "kernel.panic_on_oops=$oops"
fi
rm -rf /var/log/pods/jobs_* /var/log/containers/*_jobs_* "$KUBE_CLUSTER"
