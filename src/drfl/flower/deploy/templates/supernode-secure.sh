
for file in ca.crt key; do
    if [ ! -r "$file" ]; then
        echo "$here/$file is missing or not readable: make-keys.sh on the SuperLink's machine makes it" >&2
        exit 1
    fi
done

# The SuperLink proves by ca.crt who it is, and the site proves it by its key.
set -- --root-certificates "$here/ca.crt" --auth-supernode-private-key "$here/key" "$@"
