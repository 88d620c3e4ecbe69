# 'drfl deploy revoke' and 'rotate' put keys into keys/revoked, and no key in there may come back.
was_revoked() { # whether the site of this name lost a key
    for old in "keys/revoked/$1"-????????T??????.*.pub; do
        if [ -e "$old" ]; then
            return 0
        fi
    done
    return 1
}
fingerprint() { # of a public key; it does not depend on how the file writes the key
    ssh-keygen -l -E sha256 -f "$1" 2>/dev/null | head -n 1 | cut -d ' ' -f 2
}
is_revoked() { # whether this public key is in keys/revoked; a file that cannot be read as a key counts as revoked
    for old in keys/revoked/*.pub; do
        if [ -e "$old" ] && case $(fingerprint "$1") in '' | "$(fingerprint "$old")") true ;; *) false ;; esac; then
            return 0
        fi
    done
    return 1
}
