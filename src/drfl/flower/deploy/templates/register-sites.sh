#!/bin/sh
# Registers the sites' public keys with the SuperLink, which has to run. A site with another key is refused from then
# on. keys/NAME.node notes the number that the SuperLink gave. Safe to repeat: what is registered stays so.
set -eu
cd "$(dirname "$0")"
here=$(pwd)

@PROGRAMS@

@REVOKED@

for old in keys/revoked/*.pub; do
    if [ -e "$old" ] && ! command -v ssh-keygen >/dev/null; then
        echo "ssh-keygen is missing, which tells whether a key was revoked: install it, then run this again" >&2
        exit 1
    fi
done

known=$(flwr supernode list --format json) || true
case $known in
*'"success": true'*) ;;
*)
    echo "the SuperLink does not answer: start it with ./start-superlink.sh, then ask 'drfl deploy check .'" >&2
    exit 1
    ;;
esac

failed=0
for name in @NAMES@; do
    if [ ! -e "keys/$name.pub" ] && was_revoked "$name"; then
        echo "$name: its key was revoked, so it is not registered"
        continue
    fi
    if [ ! -r "keys/$name.pub" ]; then
        echo "$name: keys/$name.pub is missing: run ./make-keys.sh, or have the site send it" >&2
        failed=1
        continue
    fi
    if is_revoked "keys/$name.pub"; then
        echo "$name: keys/$name.pub was revoked, so it is not registered: delete the file" >&2
        failed=1
        continue
    fi
    if [ -s "keys/$name.node" ]; then
        case $known in
        *"\"$(cat "keys/$name.node")\""*)
            echo "$name: was registered already, as $(cat "keys/$name.node")"
            continue
            ;;
        esac
    fi
    answer=$(flwr supernode register "keys/$name.pub" --format json 2>&1) || true
    node=$(printf '%s\n' "$answer" | sed -n 's/.*"node-id": *"\{0,1\}\([0-9][0-9]*\).*/\1/p' | head -n 1)
    if [ -n "$node" ]; then
        echo "$node" >"keys/$name.node"
        echo "$name: registered as $node"
    else
        echo "$name: not registered: $(printf '%s' "$answer" | tr -s '[:space:]' ' ')" >&2
        failed=1
    fi
done
exit $failed
