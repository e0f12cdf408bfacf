# Sourced: keys, certificates and kubeconfigs of a test cluster, made for it and gone with it.
# shellcheck shell=bash

# issue NAME SUBJECT NAMES: a certificate of the cluster's CA in the current folder.
issue() {
    openssl ecparam -name prime256v1 -genkey -noout -out "$1.key"
    openssl req -new -key "$1.key" -subj "$2" -out "$1.csr"
    {
        echo "basicConstraints=CA:FALSE"
        echo "keyUsage=digitalSignature,keyEncipherment"
        echo "extendedKeyUsage=serverAuth,clientAuth"
        # Go reads no name but these.
        [ -z "$3" ] || echo "subjectAltName=$3"
    } >"$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -sha256 -out "$1.crt" \
        -extfile "$1.ext" 2>/dev/null
}

# kubeconfig NAME OUT: a kubeconfig with the certificate NAME of the current folder.
kubeconfig() {
    cat >"$2" <<CONFIG
apiVersion: v1
kind: Config
clusters: [{name: t, cluster: {server: "https://127.0.0.1:26443", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: u, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
contexts: [{name: c, context: {cluster: t, user: u}}]
current-context: c
CONFIG
}

# cluster_pki CLUSTER: everything a control plane and two nodes need.
cluster_pki() {
    mkdir -p "$1/pki" "$1/kc"
    chmod 700 "$1/pki" "$1/kc"
    (
        cd "$1/pki" || exit
        openssl ecparam -name prime256v1 -genkey -noout -out ca.key
        openssl req -x509 -new -key ca.key -sha256 -days 30 -subj "/CN=test-ca" -out ca.crt
        issue apiserver "/CN=kube-apiserver" \
            "IP:127.0.0.1,IP:10.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
        issue admin "/O=system:masters/CN=admin" ""
        issue cm "/CN=system:kube-controller-manager" ""
        issue sched "/CN=system:kube-scheduler" ""
        issue node1 "/O=system:nodes/CN=system:node:127.0.0.2" "IP:127.0.0.2"
        issue node2 "/O=system:nodes/CN=system:node:127.0.0.3" "IP:127.0.0.3"
        issue kubeletclient "/O=system:masters/CN=kube-apiserver-kubelet-client" ""
        openssl genrsa -out sa.key 2048 2>/dev/null
        openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
        for who in admin cm sched node1 node2; do kubeconfig "$who" "../kc/$who.conf"; done
    )
}
