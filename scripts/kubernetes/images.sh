#!/bin/bash
# Writes an archive of images for containerd: `local/pause:1` and `local/busybox:1` (Debian's static busybox), with no
# engine and no registry. usage: images.sh BIN OUT.tar
set -euo pipefail
bin=$1 out=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/archive"

# image NAME FOLDER CONFIG: adds FOLDER as an image of one layer.
entries=()
image() {
    local name=$1 folder=$2 config=$3 layer id
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -C "$folder" -cf "$work/layer.tar" .
    layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
    mv "$work/layer.tar" "$work/archive/$layer.tar"
    printf '{"architecture":"%s","os":"linux","config":%s,"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
        "$(dpkg --print-architecture)" "$config" "$layer" >"$work/config"
    id=$(sha256sum "$work/config" | cut -d' ' -f1)
    mv "$work/config" "$work/archive/$id.json"
    entries+=("{\"Config\":\"$id.json\",\"RepoTags\":[\"$name\"],\"Layers\":[\"$layer.tar\"]}")
}

mkdir -p "$work/pause" "$work/busybox"/{bin,etc,tmp,var/tmp}
cp "$bin/pause" "$work/pause/pause"
image docker.io/local/pause:1 "$work/pause" '{"Entrypoint":["/pause"]}'
cp /bin/busybox "$work/busybox/bin/busybox"
# One link each: the shell's own look-up needs names.
/bin/busybox --list | grep -vx busybox | while read -r name; do ln -s busybox "$work/busybox/bin/$name"; done
chmod 1777 "$work/busybox/tmp" "$work/busybox/var/tmp"
echo 'root:x:0:0:root:/:/bin/sh' >"$work/busybox/etc/passwd"
image docker.io/local/busybox:1 "$work/busybox" '{"Cmd":["/bin/sh"],"Env":["PATH=/bin"]}'
(IFS=, && printf '[%s]' "${entries[*]}") >"$work/archive/manifest.json"
tar -C "$work/archive" -cf "$out" .
