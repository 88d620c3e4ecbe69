
for file in ca.crt superlink.crt superlink.key; do
    if [ ! -r "certificates/$file" ]; then
        echo "certificates/$file is missing or not readable: run ./make-keys.sh" >&2
        exit 1
    fi
done

# TLS on every connection, and a site is let in only with a key that was registered.
set -- --ssl-ca-certfile "$here/certificates/ca.crt" --ssl-certfile "$here/certificates/superlink.crt" \
    --ssl-keyfile "$here/certificates/superlink.key" --enable-supernode-auth "$@"
