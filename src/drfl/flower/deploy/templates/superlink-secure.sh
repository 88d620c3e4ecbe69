
for file in ca.crt superlink.crt superlink.key; do
    if [ ! -r "certificates/$file" ]; then
        echo "certificates/$file is missing or not readable. Run ./make-keys.sh" >&2
        exit 1
    fi
done

# All connections use TLS, and only sites with a registered key are accepted.
set -- --ssl-ca-certfile "$here/certificates/ca.crt" --ssl-certfile "$here/certificates/superlink.crt" \
    --ssl-keyfile "$here/certificates/superlink.key" --enable-supernode-auth "$@"
