#!/bin/sh
# Makes what the processes prove by who they are. Needs openssl and ssh-keygen; nothing leaves this machine.
#
#   certificates/ca.crt, ca.key                 a private authority, for this deployment alone
#   certificates/superlink.crt, superlink.key   the SuperLink's certificate, for the names below
#   certificates/audit.key                      the key that signs the server's audit log (ECDSA, P-384)
#   certificates/audit.pub, sites/NAME/superlink.pub   its public half, and a copy for each site
#   sites/NAME/ca.crt                           a copy for each site, which knows the SuperLink by it
#   sites/NAME/key, key.pub                     the key of each site (ECDSA, P-384)
#   keys/NAME.pub                               its public half, which register-sites.sh registers
#
# Safe to repeat: it makes what is missing and never overwrites. For a new certificate (they are valid for @DAYS@ days)
# delete certificates/superlink.* first; 'drfl deploy rotate' gives a site a new key. A site whose key was revoked gets
# none, except by './make-keys.sh --renew NAME', which makes a new pair; the old key never comes back.
# A site that makes its own key (ssh-keygen -t ecdsa -b 384 -N '' -f key) sends its key.pub only: save it as
# keys/NAME.pub before you run this. Keep certificates/ca.key away from the network, or delete it once all is made.
set -eu
umask 077
cd "$(dirname "$0")"

names='@SAN@'

@REVOKED@

renew=
case "$#:${1-}" in
0:) ;;
2:--renew)
    case " @NAMES@ " in
    *" $2 "*) renew=$2 ;;
    *)
        echo "unknown site '$2': known are @NAMES@" >&2
        exit 2
        ;;
    esac
    if [ -e "keys/$renew.pub" ] || ! was_revoked "$renew"; then
        echo "$renew: --renew is for a site whose key was revoked: 'drfl deploy rotate' exchanges a key" >&2
        exit 2
    fi
    ;;
*)
    echo "usage: ./make-keys.sh [--renew NAME]" >&2
    exit 2
    ;;
esac

for program in openssl ssh-keygen; do
    if ! command -v "$program" >/dev/null; then
        echo "$program is missing: install it, then run this again" >&2
        exit 1
    fi
done

# What is half made, as after an interruption, never stays under its final name.
work=$(mktemp -d ./.keys.XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p certificates keys
chmod 700 certificates

if [ ! -e certificates/ca.crt ]; then
    if [ -e certificates/ca.key ]; then
        echo "certificates/ca.key is there without ca.crt: delete it, or bring its ca.crt back" >&2
        exit 1
    fi
    openssl ecparam -name secp384r1 -genkey -noout -out "$work/ca.key"
    cat >"$work/ca.cnf" <<'END'
[req]
distinguished_name = name
x509_extensions = authority
prompt = no
[name]
CN = drfl deployment
[authority]
basicConstraints = critical, CA:true, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
END
    openssl req -x509 -new -sha384 -key "$work/ca.key" -config "$work/ca.cnf" -days @CA_DAYS@ -out "$work/ca.crt"
    mv "$work/ca.key" certificates/ca.key
    mv "$work/ca.crt" certificates/ca.crt
    echo "certificates/ca.crt: made"
fi

if [ ! -e certificates/superlink.crt ]; then
    if [ -e certificates/superlink.key ]; then
        echo "certificates/superlink.key is there without superlink.crt: delete it, or bring its superlink.crt back" >&2
        exit 1
    fi
    if [ ! -e certificates/ca.key ]; then
        echo "certificates/ca.key is missing, and only it can sign superlink.crt: bring it back" >&2
        exit 1
    fi
    openssl ecparam -name secp384r1 -genkey -noout -out "$work/superlink.key"
    cat >"$work/superlink.cnf" <<END
[req]
distinguished_name = name
prompt = no
[name]
CN = drfl SuperLink
[server]
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = $names
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END
    openssl req -new -sha384 -key "$work/superlink.key" -config "$work/superlink.cnf" -out "$work/superlink.csr"
    openssl x509 -req -sha384 -in "$work/superlink.csr" -CA certificates/ca.crt -CAkey certificates/ca.key \
        -set_serial "0x$(openssl rand -hex 16)" -extfile "$work/superlink.cnf" -extensions server -days @DAYS@ \
        -out "$work/superlink.crt" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
    mv "$work/superlink.key" certificates/superlink.key
    mv "$work/superlink.crt" certificates/superlink.crt
    echo "certificates/superlink.crt: made for $names"
fi
chmod 644 certificates/ca.crt certificates/superlink.crt

if [ ! -e certificates/audit.key ]; then
    if [ -e certificates/audit.pub ]; then
        echo "certificates/audit.pub is there without certificates/audit.key: delete it, or bring the key back" >&2
        exit 1
    fi
    ssh-keygen -q -t ecdsa -b 384 -N '' -C superlink -f "$work/audit"
    chmod 644 "$work/audit.pub"
    mv "$work/audit" certificates/audit.key
    mv "$work/audit.pub" certificates/audit.pub
    echo "certificates/audit.key: made"
elif [ ! -e certificates/audit.pub ]; then
    ssh-keygen -y -f certificates/audit.key >"$work/public"
    chmod 644 "$work/public"
    mv "$work/public" certificates/audit.pub
fi

failed=0
for name in @NAMES@; do
    mkdir -p "sites/$name"
    if [ ! -e "sites/$name/ca.crt" ]; then
        cp certificates/ca.crt "$work/copy"
        chmod 644 "$work/copy"
        mv "$work/copy" "sites/$name/ca.crt"
    fi
    if [ ! -e "sites/$name/superlink.pub" ]; then
        cp certificates/audit.pub "$work/copy"
        chmod 644 "$work/copy"
        mv "$work/copy" "sites/$name/superlink.pub"
    fi
    if [ -e "keys/$name.pub" ]; then
        if is_revoked "keys/$name.pub"; then
            echo "keys/$name.pub: this key was revoked: delete the file; a site needs a new key to come back" >&2
            failed=1
        elif [ ! -e "sites/$name/key" ]; then
            echo "keys/$name.pub: kept; its private half is not here, but at the site"
        fi
        continue
    fi
    if [ "$name" != "$renew" ] && was_revoked "$name"; then
        echo "$name: its key was revoked, so it gets none; './make-keys.sh --renew $name' makes a new pair"
        continue
    fi
    if [ -e "sites/$name/key" ] && [ "$name" = "$renew" ]; then
        mv -f "sites/$name/key" "sites/$name/key.old"
        rm -f "sites/$name/key.pub"
    fi
    if [ -e "sites/$name/key" ]; then
        ssh-keygen -y -f "sites/$name/key" >"$work/public"
        if is_revoked "$work/public"; then
            echo "sites/$name/key: this key was revoked: delete it, and run this again for a new one" >&2
            failed=1
            continue
        fi
        chmod 644 "$work/public"
        mv "$work/public" "keys/$name.pub"
        echo "keys/$name.pub: made from sites/$name/key"
        continue
    fi
    ssh-keygen -q -t ecdsa -b 384 -N '' -C "$name" -f "$work/key"
    chmod 644 "$work/key.pub"
    cp "$work/key.pub" "keys/$name.pub"
    chmod 644 "keys/$name.pub"
    mv "$work/key.pub" "sites/$name/key.pub"
    mv "$work/key" "sites/$name/key"
    echo "sites/$name/key: made"
done
if [ "$failed" -ne 0 ]; then
    exit 1
fi
echo "all keys and certificates are there"
