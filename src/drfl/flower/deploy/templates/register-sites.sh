#!/bin/sh
# Registers the sites' public keys with the SuperLink, which must be running. The SuperLink then refuses all other keys.
# keys/NAME.node records the node ID that the SuperLink assigned. You can run this again: registered keys stay
# registered.
set -eu
cd "$(dirname "$0")"
here=$(pwd)

@PROGRAMS@

@SITES@

@REVOKED@

for old in keys/revoked/*.pub; do
    if [ -e "$old" ] && ! command -v ssh-keygen >/dev/null; then
        echo "ssh-keygen is missing, which has to check for revoked keys. Install it and run this again" >&2
        exit 1
    fi
done

# The list also has the nodes that the SuperLink no longer accepts. Notes may precede the JSON.
accepted=$(flwr supernode list --format json | "$python" -I -c '
import json, sys
text = sys.stdin.read()
try:
    answer = json.JSONDecoder().raw_decode(text, f"\n{text}".index("\n{"))[0]
    nodes = answer["nodes"] if answer["success"] is True else None
    print(*(node["node-id"] for node in nodes if node["status"] not in @REMOVED@))
except (ValueError, KeyError, TypeError):
    sys.exit(1)
') || {
    echo "the SuperLink does not answer. Start it with ./start-superlink.sh. If it runs, 'drfl deploy check .' shows the cause" >&2
    exit 1
}

failed=0
for name in $sites; do
    if [ ! -e "keys/$name.pub" ] && was_revoked "$name"; then
        echo "$name: not registered, because its key was revoked"
        continue
    fi
    if [ ! -r "keys/$name.pub" ]; then
        echo "$name: keys/$name.pub is missing. Run ./make-keys.sh, or ask the site for it" >&2
        failed=1
        continue
    fi
    if is_revoked "keys/$name.pub"; then
        echo "$name: not registered, because the key in keys/$name.pub was revoked. Delete the file" >&2
        failed=1
        continue
    fi
    if [ -s "keys/$name.node" ]; then
        case " $accepted " in
        *" $(cat "keys/$name.node") "*)
            echo "$name: already registered as $(cat "keys/$name.node")"
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
        case $answer in
        *"already in use"*) echo "$name: give the site a new key with 'drfl deploy rotate'" >&2 ;;
        esac
        failed=1
    fi
done
exit $failed
