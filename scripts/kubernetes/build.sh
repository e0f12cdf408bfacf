#!/bin/bash
# Builds kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and `pause` from Debian's own
# source package, once: about four minutes on two free cores, nothing when the cache has them.
# Prints the folder they are in.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

if [ -e "$KUBE_BIN/READY" ]; then
    echo "$KUBE_BIN"
    exit 0
fi
need_root
mkdir -p "$POLDER_CACHE"
exec 8>"$POLDER_CACHE/kubernetes-build.lock"
flock 8
if [ -e "$KUBE_BIN/READY" ]; then
    echo "$KUBE_BIN"
    exit 0
fi
say "building Kubernetes $KUBE_VERSION, once (about four minutes, 1.5 GB while it lasts)"
need_packages golang-1.19-go dpkg-dev gcc libc6-dev

work=$POLDER_CACHE/kubernetes-build
rm -rf "$work"
mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/out"
# The machine's own sources of Debian, asked for source packages too, without touching /etc/apt.
if [ -f /etc/apt/sources.list.d/debian.sources ]; then
    list=$work/apt/debian.sources
    sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >"$list"
else
    list=$work/apt/debian.list
    sed -n 's/^deb \(.*bookworm.*\)/deb-src \1/p' /etc/apt/sources.list >"$list"
fi
apt_options=(-o Dir::Etc::sourcelist="$list" -o Dir::Etc::sourceparts=- -o Dir::State::Lists="$work/apt/lists"
    -o Dir::Cache="$work/apt/cache" -o APT::Sandbox::User=root -o Acquire::Languages=none)
apt-get "${apt_options[@]}" -qq update >&2
(cd "$work" && apt-get "${apt_options[@]}" -qq source --download-only "$KUBE_SOURCE" >&2)
tree=$work/gopath/src/k8s.io/kubernetes
mkdir -p "$(dirname "$tree")"
dpkg-source --no-check -x "$work"/kubernetes_*.dsc "$tree" >/dev/null

export PATH=/usr/lib/go-1.19/bin:$PATH GO111MODULE=off CGO_ENABLED=0 GOFLAGS='' GOPATH=$work/gopath GOCACHE=$work/gocache
cd "$tree"
# The OpenAPI tables are generated in upstream's build and not part of the source package.
go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
dirs=$( (
    grep -rl --include='*.go' '+k8s:openapi-gen=' pkg cmd plugin
    cd vendor && grep -Rl --include='*.go' '+k8s:openapi-gen=' k8s.io |
        grep -v -e k8s.io/code-generator -e k8s.io/sample-apiserver | sed 's#^#vendor/#'
) | xargs -n1 dirname | LC_ALL=C sort -u | sed 's#^#k8s.io/kubernetes/#' | paste -sd,)
"$work/openapi-gen" -i "$dirs" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
    -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$work/violations" --output-base "$work/gopath/src" >&2
package=k8s.io/kubernetes/vendor/k8s.io
stamp="-s -w"
for place in client-go/pkg/version component-base/version; do
    stamp+=" -X $package/$place.gitVersion=v$KUBE_VERSION -X $package/$place.gitMajor=1 -X $package/$place.gitMinor=20"
done
go build -tags providerless,dockerless -ldflags "$stamp" -o "$work/out/" \
    ./cmd/kube-apiserver ./cmd/kube-controller-manager ./cmd/kube-scheduler ./cmd/kubelet
gcc -Os -static -s -o "$work/out/pause" build/pause/linux/pause.c
rm -rf "$KUBE_BIN"
mv "$work/out" "$KUBE_BIN"
touch "$KUBE_BIN/READY"
rm -rf "$work"
echo "$KUBE_BIN"
