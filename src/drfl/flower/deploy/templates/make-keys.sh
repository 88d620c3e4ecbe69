#!/bin/sh
# Makes the keys and certificates by which the SuperLink and the sites authenticate each other.
# Needs openssl and ssh-keygen. Nothing leaves this machine.
#
#   certificates/ca.crt, ca.key                 a private certificate authority, used by this deployment only
#   certificates/superlink.crt, superlink.key   the SuperLink's certificate, for the host names below
#   certificates/audit.key                      the key that signs the server's audit log (ECDSA, P-384)
#   certificates/audit.pub, sites/NAME/superlink.pub   its public key, and a copy for each site
#   sites/NAME/ca.crt                           a copy for each site, which verifies the SuperLink with it
#   sites/NAME/key, key.pub                     the key pair of each site (ECDSA, P-384)
#   keys/NAME.pub                               the site's public key, which register-sites.sh registers
#
# You can run this again: it makes missing files and never overwrites any.
# - To renew the SuperLink's certificate (valid for @DAYS@ days), delete certificates/superlink.* first.
# - To change a site's key, use 'drfl deploy rotate'.
# - A site whose key was revoked gets no new key, unless you run './make-keys.sh --renew NAME', which makes a new pair.
#   A revoked key is never used again.
# - 'drfl deploy add-site' runs './make-keys.sh --add NAME', which makes the keys of a site that is not in server.toml yet.
# - A new site can make its own key (ssh-keygen -t ecdsa -b 384 -N '' -f key) and send you only key.pub. Save it as
#   keys/NAME.pub before you run this.
# Keep certificates/ca.key off the network, or delete it after all certificates are made.
set -eu
umask 077
cd "$(dirname "$0")"

hosts='@SAN@'

@SITES@

@REVOKED@

renew=
case "$#:${1-}" in
0:) ;;
2:--renew)
    case " $sites " in
    *" $2 "*) renew=$2 ;;
    *)
        echo "unknown site '$2'. The sites are: $sites" >&2
        exit 2
        ;;
    esac
    if [ -e "keys/$renew.pub" ] || ! was_revoked "$renew"; then
        echo "$renew: --renew needs a site whose key was revoked. To change a key, use 'drfl deploy rotate'" >&2
        exit 2
    fi
    ;;
2:--add)
    case $2 in
    [!A-Za-z0-9]* | *[!A-Za-z0-9_-]* | '')
        echo "invalid site name '$2'. A name has only letters, digits, - and _" >&2
        exit 2
        ;;
    esac
    sites=$2 renew=$2
    ;;
*)
    echo "usage: ./make-keys.sh [--renew NAME | --add NAME]" >&2
    exit 2
    ;;
esac

for program in openssl ssh-keygen; do
    if ! command -v "$program" >/dev/null; then
        echo "$program is missing. Install it and run this again" >&2
        exit 1
    fi
done

# Files are made in this folder and then moved, so that an interruption leaves no partial file under its final name.
work=$(mktemp -d ./.keys.XXXXXX)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p certificates keys
chmod 700 certificates

if [ ! -e certificates/ca.crt ]; then
    if [ -e certificates/ca.key ]; then
        echo "certificates/ca.key exists without ca.crt. Restore the .crt, or delete the .key" >&2
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
        echo "certificates/superlink.key exists without superlink.crt. Restore the .crt, or delete the .key" >&2
        exit 1
    fi
    if [ ! -e certificates/ca.key ]; then
        echo "certificates/ca.key is missing, which has to sign superlink.crt. Restore it" >&2
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
subjectAltName = $hosts
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END
    openssl req -new -sha384 -key "$work/superlink.key" -config "$work/superlink.cnf" -out "$work/superlink.csr"
    openssl x509 -req -sha384 -in "$work/superlink.csr" -CA certificates/ca.crt -CAkey certificates/ca.key \
        -set_serial "0x$(openssl rand -hex 16)" -extfile "$work/superlink.cnf" -extensions server -days @DAYS@ \
        -out "$work/superlink.crt" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
    mv "$work/superlink.key" certificates/superlink.key
    mv "$work/superlink.crt" certificates/superlink.crt
    echo "certificates/superlink.crt: made for $hosts"
fi
chmod 644 certificates/ca.crt certificates/superlink.crt

if [ ! -e certificates/audit.key ]; then
    if [ -e certificates/audit.pub ]; then
        echo "certificates/audit.pub exists without audit.key. Restore audit.key, or delete audit.pub" >&2
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
for name in $sites; do
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
            echo "keys/$name.pub: this key was revoked. Delete the file; the site needs a new key to return" >&2
            failed=1
        elif [ ! -e "sites/$name/key" ]; then
            echo "keys/$name.pub: kept; the private key is at the site, not here"
        fi
        continue
    fi
    if [ "$name" != "$renew" ] && was_revoked "$name"; then
        echo "$name: no key made, because its key was revoked. To make a new pair: ./make-keys.sh --renew $name"
        continue
    fi
    if [ -e "sites/$name/key" ] && [ "$name" = "$renew" ]; then
        mv -f "sites/$name/key" "sites/$name/key.old"
        rm -f "sites/$name/key.pub"
    fi
    if [ -e "sites/$name/key" ]; then
        ssh-keygen -y -f "sites/$name/key" >"$work/public"
        if is_revoked "$work/public"; then
            echo "sites/$name/key: this key was revoked. Delete it and run this again to make a new one" >&2
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
    cp "$work/key.pub" "$work/public"
    mv "$work/key" "sites/$name/key"
    mv "$work/key.pub" "sites/$name/key.pub"
    mv "$work/public" "keys/$name.pub"
    echo "sites/$name/key: made"
done
if [ "$failed" -ne 0 ]; then
    exit 1
fi
echo "all keys and certificates are in place"
