# Sourced by the scripts beside this file: where the cluster lives and what it is built from.
# shellcheck shell=bash
# shellcheck disable=SC2034 # those who source it use them
# shellcheck source=../lib/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/common.sh"

KUBE_SCRIPTS=$ROOT/scripts/kubernetes
# The newest Kubernetes that Debian 12 carries as source.
KUBE_VERSION=1.20.2
KUBE_SOURCE=kubernetes=1.20.5+really1.20.2-1.1+deb12u1
# Named by what builds it, so that a changed script builds anew and an unchanged one never does.
KUBE_BIN=$POLDER_CACHE/kubernetes-$KUBE_VERSION-$(sha256sum "$KUBE_SCRIPTS/build.sh" | cut -c1-12)
# The running cluster: keys, sockets, pid files, logs. One at a time on a machine (it owns ports and bridges).
KUBE_CLUSTER=${POLDER_KUBE_CLUSTER:-$POLDER_CACHE/kubernetes-cluster}

need_root() {
    [ "$(id -u)" -eq 0 ] || die "kubelets need root"
}

# pid_lives FILE: whether the process whose id is in FILE still runs.
pid_lives() {
    [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null
}
