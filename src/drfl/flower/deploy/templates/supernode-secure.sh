
for file in ca.crt key; do
    if [ ! -r "$file" ]; then
        echo "$here/$file is missing or not readable. Copy it from sites/@NAME@ on the SuperLink's machine, where" \
            "make-keys.sh makes it. If a key is lost, 'drfl deploy check .' explains how to replace it" >&2
        exit 1
    fi
done

# The site verifies the SuperLink with ca.crt, and the SuperLink verifies the site by its key.
set -- --root-certificates "$here/ca.crt" --auth-supernode-private-key "$here/key" "$@"
